package main

import (
	"kube-proxy/internal/listen"
	"kube-proxy/ui"
)

// newUI makes the status page. A reload may turn it off, and on again.
func (p *proxy) newUI() *ui.Handler {
	share := listen.OwnShare()
	return ui.New(ui.Config{
		Source: p.inspector, Owner: socketOwner, Changes: p.changes, On: func() bool { return p.config().Servers.UI },
		Pages: max(share.Streams, share.Connections/2),
	})
}
