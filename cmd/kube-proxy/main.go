// Command kube-proxy makes the Services of a cluster work on one node: it turns Services and
// EndpointSlices into state of the kernel.
//
// This package connects all others: flags and file (config), a source of events (source/…), for
// each IP family an engine with a data plane (plane/…), and observers of applied changes
// (conntrack).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"

	"github.com/spf13/cobra"

	"kube-proxy/cli"
	"kube-proxy/config"
	"kube-proxy/logging"
	"kube-proxy/plane/all"
)

func main() {
	ctx := untilSignal()
	out, errOut := standard()
	name, cmd := "kube-proxy", command(out, errOut, os.Args[1:])
	if cli.IsPlugin(os.Args[0]) {
		name, cmd = cli.PluginName, cli.NewPlugin(out, errOut, os.Args[1:])
	}
	if code := cli.Exit(errOut, name, cmd.ExecuteContext(ctx)); code != 0 {
		os.Exit(code)
	}
}

// untilSignal returns a context that the first signal ends. It restores the default action before
// it ends the context, so a second signal ends the process at once (PR-07).
func untilSignal() context.Context {
	ctx, end := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, ends()...)
	go func() {
		s := <-signals
		signal.Stop(signals)
		end(fmt.Errorf("%v signal received", s))
	}()
	return ctx
}

// command is the program with this command line.
func command(out, errOut io.Writer, commandLine []string) *cobra.Command {
	return cli.New(all.Modes(), out, errOut, commandLine, func(ctx context.Context, cfg *config.Config) error {
		return start(ctx, commandLine, cfg, out, errOut)
	})
}

// gcPercent is GOGC after the lists have arrived, unless the environment sets another. The proxy
// then holds much and allocates little, so little headroom costs little time. While the lists
// arrive the reverse holds (docs/scale.md).
const gcPercent, gcPercentListing = 25, 70

func setGC(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// start writes the configuration, or runs the proxy.
func start(ctx context.Context, args []string, cfg *config.Config, out, errOut io.Writer) (err error) {
	log, err := logging.New(cfg.Logging, out, errOut)
	if err != nil {
		return fmt.Errorf("initialize logging: %w", err)
	}
	defer func() {
		// main prints the error to stderr, which log files and objects do not show (FL-02).
		if err != nil && (!cfg.Logging.ToStderr || cfg.Logging.Format == "json") {
			log.Logger().Error("kube-proxy failed", "err", err)
		}
		err = errors.Join(err, log.Flush())
	}()
	if cfg.Logging.Verbosity >= 1 {
		for _, line := range cfg.Flags {
			log.Logger().Info(line)
		}
	}
	if cfg.WriteConfigTo == "" && len(cfg.Cleanup) == 0 && !cfg.InitOnly {
		setGC(gcPercentListing)
		p := newProxy(args, cfg, log, log.Logger())
		return asService(ctx, cfg.WindowsService, p.run, p.hangUp)
	}
	// The other tasks of the process, such as writing a file, log the warnings as well.
	warn(log.Logger(), cfg.Warnings)
	switch {
	case cfg.WriteConfigTo != "":
		data, err := cfg.YAML()
		if err != nil {
			return err
		}
		if err := writeConfig(cfg.WriteConfigTo, data); err != nil {
			return fmt.Errorf("--write-config-to: %w", err)
		}
		return nil
	case len(cfg.Cleanup) > 0:
		return removeRules(ctx, cfg, log.Logger())
	default:
		return newProxy(args, cfg, log, log.Logger()).initOnly(ctx)
	}
}

// writeConfig writes a file. It refuses a symbolic link: in a folder that others may write to, a
// link would have this process, which is root, overwrite any file.
func writeConfig(path string, data []byte) error {
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSymlink != 0 {
		return fmt.Errorf("%s is a symbolic link: name the file itself", path)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|noFollow, 0o644) // it may be one now
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// warn logs warnings about the configuration.
func warn(log *slog.Logger, warnings []string) {
	for _, w := range warnings {
		log.Warn("Configuration warning", "warning", w)
	}
}
