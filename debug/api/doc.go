// Package api carries questions of people to a proxy that runs, and its answers back: HTTP and JSON over a unix socket for
// root alone, on Windows a named pipe for administrators.
//
//	kube-proxy trace ─▶ Client ─▶ socket ─▶ Server ─▶ Handler ─▶ inspect.Inspector
//	kube-proxy trace --manifests DIR ─▶ Client ─▶ Handler ─▶ inspect.Inspector
//
// Paths begin with the version of what they answer, /v1; fields and paths may be added to it. Whoever asks costs those who do not nothing that
// grows: connections, headers, the answers that are in memory at once and the questions that are worked on at once are bounded, and who does
// not read is not waited for.
package api
