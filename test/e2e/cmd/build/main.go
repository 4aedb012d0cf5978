// Command build builds the kube-apiserver, the etcd and the kubectl that the tests of this module
// start, unless they are built already. `make e2e` runs it first, so that no test's timeout counts
// the minutes of a build.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"kube-proxy/test/e2e/controlplane"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logf := func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	if _, err := controlplane.Build(ctx, logf, "kube-apiserver", "etcd", "kubectl"); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		stop()
		os.Exit(1)
	}
}
