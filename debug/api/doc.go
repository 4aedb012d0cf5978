// Package api is the admin API of a running proxy, server and client: HTTP and JSON over a unix
// socket that only root may open, on Windows over a named pipe for administrators.
//
//	kube-proxy trace ─▶ Client ─▶ socket ─▶ Server ─▶ Handler ─▶ inspect.Inspector
//	kube-proxy trace --manifests DIR ─▶ Client ─▶ Handler ─▶ inspect.Inspector
//
// Paths begin with the version of the API, /v1; a version may gain fields and paths. Queries do not
// slow the proxy down: the number of connections, headers, answers in memory and queries in
// progress is bounded, and the server does not wait for slow readers.
package api
