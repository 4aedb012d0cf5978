// Package ui is the status page: what the proxy does and why, for a person who looks for a fault with a browser.
//
//	                      ┌─ / (table of Services)  /service  /changes  /trace  /node     html/template: works without JavaScript
//	Source ──▶ Handler ───┼─ /services.json                                               all rows at once, for the virtual list
//	   └─ Watch ─▶ hub ───┴─ /events                                                      what changed, as server-sent events
//
// It only shows: GET and HEAD alone, nothing is written anywhere. It answers who asks from this machine itself, at a loopback
// address and by a loopback name ([Handler.ServeHTTP]), as kubectl port-forward does. All that it shows may have been written
// by tenants who mean harm: templates escape, the content security policy allows no inline script or style, names are
// shown with what cannot be seen in them spelled out ([visible]).
//
// While nobody looks nothing runs. While somebody does, one goroutine for all pages gathers what changed, at most
// once in a quarter of a second, and renders it once; a page that does not read misses it and is told to load again.
package ui
