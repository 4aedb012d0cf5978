// Package scm has a program work as a service of Windows: it answers the service control manager while the work goes on, and
// has it end when the manager says so. What only Windows has is behind [Manager], so that the rest is tested anywhere.
//
//	start ──▶ StartPending ──work begins──▶ Running ──Stop, Shutdown──▶ StopPending ──work has ended──▶ Stopped
//	                                          │ ParamChange: read the configuration again
//	                                          └─the work ends by itself──▶ an error, no Stopped: recovery runs
//
// The source is Microsoft's "Service State Transitions" and "SERVICE_STATUS": a service that is stopping must count up within
// the time that it asked for, or it is taken to hang.
package scm
