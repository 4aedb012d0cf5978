// Package ui is the status page: it shows in a browser what the proxy does and why. It runs in the
// process of kube-proxy ui, which its user has started, and queries the proxy at its admin socket.
//
//	                           ┌─ / (table of Services)  service  changes  trace  node   html/template
//	admin.Client ──▶ Handler ──┼─ services.json                                          rows of the virtual list
//	                           ├─ traffic.json                                           what each carries now
//	                           └─ events                                                 server-sent events
//
// The page is read-only: it answers only GET and HEAD, and writes nothing. It is below a random
// path ([Handler.Path]); a request to another path learns nothing. Malicious tenants may have
// written anything that pages show: templates escape it, the content security policy allows no
// inline script or style, and names have their invisible characters spelled out ([visible]).
//
// Each open page waits for changes with one query at the socket; one more query, for all pages,
// counts traffic. While no page is open nothing runs.
package ui
