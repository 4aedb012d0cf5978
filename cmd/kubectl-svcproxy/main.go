// Command kubectl-svcproxy is kube-proxy under the name of its plugin of kubectl, without the
// proxy: it also builds for systems that run none.
package main

import (
	"context"
	"os"
	"os/signal"

	"kube-proxy/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(cli.Exit(os.Stderr, cli.PluginName, cli.NewPlugin(os.Stdout, os.Stderr, os.Args[1:]).ExecuteContext(ctx)))
}
