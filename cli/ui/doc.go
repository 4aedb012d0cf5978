// Package ui is the status page: what the proxy does and why, for a person who looks for a fault
// with a browser. It runs in the process of kube-proxy ui, which that person has started, and asks
// the proxy at its admin socket.
//
//	                           ┌─ / (table of Services)  service  changes  trace  node   html/template
//	admin.Client ──▶ Handler ──┼─ services.json                                          rows of the virtual list
//	                           ├─ traffic.json                                           what each carries now
//	                           └─ events                                                 server-sent events
//
// It only shows: GET and HEAD alone, nothing is written anywhere. All is below a random path
// ([Handler.Path]); a request that does not name it learns nothing. All that pages show may have
// been written by tenants who mean harm: templates escape, the content security policy allows no
// inline script or style, names are shown with what cannot be seen in them spelled out ([visible]).
//
// Each open page waits for changes with one question at the socket; one more, for all pages, has
// traffic counted. While no page is open nothing runs.
package ui
