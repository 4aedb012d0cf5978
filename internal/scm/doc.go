// Package scm runs a program as a service of Windows: it answers the service control manager during
// the work, and ends the work when the manager requests it. The parts that exist only on Windows
// are behind [Manager], so that the rest can be tested anywhere.
//
//	start ──▶ StartPending ──work begins──▶ Running ──Stop, Shutdown──▶ StopPending ──work has ended──▶ Stopped
//	                                          │ ParamChange: read the configuration again
//	                                          └─the work ends by itself──▶ an error, no Stopped: recovery runs
//
// The source is Microsoft's "Service State Transitions" and "SERVICE_STATUS": a stopping service
// must increase its checkpoint within its wait hint, or the manager assumes that it hangs.
package scm
