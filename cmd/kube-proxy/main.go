// Command kube-proxy makes the Services of a cluster work on one node: it turns Services and EndpointSlices
// into state of the kernel.
//
// This package is the only place that knows all others: flags and file (config), a source of events (source/…),
// for each IP family an engine with a data plane (plane/…), and what observes applied changes (conntrack).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"kube-proxy/config"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := command(os.Stdout, os.Stderr, os.Args[1:]).ExecuteContext(ctx); err != nil {
		// What is wrong with the command line comes with a hint to --help, not with all of it: the message
		// must not scroll away.
		fmt.Fprintf(os.Stderr, "kube-proxy: %v\n", err)
		if errors.As(err, new(config.Problems)) {
			fmt.Fprintln(os.Stderr, "kube-proxy --help lists all flags")
		}
		os.Exit(1)
	}
}

func command(out, errOut io.Writer, args []string) *cobra.Command {
	opts := config.NewOptions()
	cmd := &cobra.Command{
		Use:           "kube-proxy",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs, // config reports them with all other problems (FL-01)
		RunE: func(cmd *cobra.Command, args []string) error {
			if print, raw := opts.PrintsVersion(); print {
				return printVersion(out, opts.Version, raw)
			}
			cfg, err := opts.Complete(args)
			if err != nil {
				return err
			}
			return run(cmd.Context(), cfg, newLog(errOut, cfg.Verbosity))
		},
	}
	opts.AddFlags(cmd.Flags())
	cmd.SetHelpFunc(func(*cobra.Command, []string) { config.Usage(out, "kube-proxy") })
	cmd.SetOut(out)
	cmd.SetErr(errOut)
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.SetArgs(args)
	return cmd
}
