package cli

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"kube-proxy/cli/ui"
	"kube-proxy/config"
	"kube-proxy/debug/inspect"
	"kube-proxy/internal/listen"
	"kube-proxy/lb"
)

// uiQuery is "kube-proxy ui".
func uiQuery() queryCommand {
	var at string
	return queryCommand{
		name: "ui", args: "[--listen ADDRESS:PORT]", single: true,
		short: "serve a live status page: Services, endpoints, changes, traces, drift",
		about: "Serves a web page with the answers of the other commands, updated live, until it is interrupted. It " +
			"listens on a loopback address and prints the URL. The URL contains a secret, so that other users of " +
			"this machine cannot open the page.",
		more: "\nTo use it from another machine, choose a port and forward it:\n\n" +
			"  ssh -t -L 10300:127.0.0.1:10300 NODE sudo kube-proxy ui --listen 127.0.0.1:10300\n" +
			"  kubectl exec -it -n kube-system POD -- kube-proxy ui --listen 127.0.0.1:10300\n" +
			"  kubectl port-forward -n kube-system POD 10300:10300\n" +
			"\n      --listen string   loopback address and port, default 127.0.0.1:0; port 0 is any free port\n",
		flags: func(cmd *cobra.Command) { cmd.Flags().StringVar(&at, "listen", "127.0.0.1:0", "") },
		ask:   func(ctx context.Context, q *queries, _ []string) error { return q.page(ctx, at) },
	}
}

// pageServer returns a server to which any program of this machine may connect. Pages that follow
// changes have no time limit; their number is limited.
func pageServer(page http.Handler) *http.Server {
	server := &http.Server{Handler: page, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: listen.MaxHeaderBytes, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	(&listen.ConnLimit{Most: listen.OwnShare().Connections}).Bound(server)
	return server
}

// page serves the page until ctx ends.
func (q *queries) page(ctx context.Context, at string) error {
	if a, err := netip.ParseAddrPort(at); err != nil || !a.Addr().Unmap().IsLoopback() {
		return config.Problems{
			{Where: "--listen", Value: at, Want: "want a loopback address and a port, such as 127.0.0.1:0"}}
	}
	var s inspect.Status
	if err := q.client.Get(ctx, "status", nil, &s); err != nil {
		return err
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	page := ui.New(q.client)
	server := pageServer(page)
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // pages that are open do not hold up the end
	fmt.Fprintf(q.errOut, "kube-proxy: note: open this URL in a browser to see node %s; stop with Ctrl-C\n",
		lb.Printable(s.Node))
	fmt.Fprintf(q.out, "http://%s%s\n", l.Addr(), page.Path())
	if err := server.Serve(l); ctx.Err() == nil {
		return err
	}
	return nil
}
