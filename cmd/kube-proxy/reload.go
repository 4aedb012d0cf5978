package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"kube-proxy/config"
	"kube-proxy/event"
	"kube-proxy/internal/system"
	"kube-proxy/internal/wiring"
	"kube-proxy/mode"
	"kube-proxy/plane/all"
)

// watchConfig has changes of the configuration file take effect until ctx ends (PR-04, PR-07). fail
// is called when a change needs a new process.
func (p *proxy) watchConfig(ctx context.Context, fail func(error)) {
	file := p.config().File
	changes := make(chan error, 1)
	if file != "" {
		go func() {
			// The first call has the content that the process has started with, unless it has
			// changed since.
			err := config.Watch(ctx, file, nil, func(_ []byte, err error) {
				select {
				case changes <- err:
				case <-ctx.Done():
				}
			}, func(every time.Duration, err error) {
				p.log.Warn("Cannot watch the configuration file, polling it instead; SIGHUP reloads it at once",
					"every", every, "err", err)
			})
			if err != nil {
				p.log.Error("Failed to watch the configuration file; send SIGHUP after a change", "err", err)
			}
		}()
	}
	for begun := false; ; {
		select {
		case <-ctx.Done():
			return
		case err := <-changes:
			if err != nil {
				p.notReloaded(err)
				continue
			}
			p.reload(begun, fail) // later changes are the operator's
			begun = true
		case <-p.hangups:
			if file == "" {
				p.log.Info("Received SIGHUP, but there is no configuration file")
				continue
			}
			p.reload(true, fail)
		}
	}
}

// hangUp has the configuration read again, as SIGHUP does.
func (p *proxy) hangUp() {
	select {
	case p.hangups <- syscall.SIGHUP:
	default: // it is due anyway
	}
}

// reload reads the configuration again, and applies it if it is valid. asked: the operator
// requested it.
func (p *proxy) reload(asked bool, fail func(error)) {
	before := p.config()
	read, err := loadConfig(p.args)
	if err != nil {
		p.notReloaded(err)
		return
	}
	after, err := wiring.Resolve(read, p.choice.Mode)
	if err != nil {
		p.notReloaded(err)
		return
	}
	live, restart := config.Diff(p.choice.Mode.Name, before.Config, read)
	if after.Mode == p.choice.Mode.Name { // it runs already
		restart = slices.DeleteFunc(restart, func(field string) bool {
			if field == "mode" {
				live = append(live, field)
			}
			return field == "mode"
		})
	}
	switch {
	case len(restart) > 0:
		fail(fmt.Errorf("the content of the configuration file %s was updated, and a change of %s takes effect in a "+
			"new process only: %s; the rules stay in force until it runs", before.File, strings.Join(restart, ", "),
			after.WhyRestart(restart[0])))
	case len(live) > 0:
		reported := slices.Concat(before.Warnings, before.Resolved.Warnings)
		known := func(w string) bool { return slices.Contains(reported, w) }
		warn(p.log, slices.DeleteFunc(slices.Concat(after.Warnings, after.Resolved.Warnings), known))
		changes := strings.Join(live, ", ")
		if err := p.apply(before, after); err != nil {
			p.log.Error("Applied a part of the changed configuration", "file", before.File, "fields",
				strings.Join(live, " "), "err", err)
			changes += "; but not: " + err.Error()
		} else {
			p.log.Info("Applied the changed configuration", "file", before.File, "fields", strings.Join(live, " "))
		}
		p.publish(event.ConfigReloaded(after.NodeName, before.File, changes))
	case p.unusable:
		p.log.Info("Configuration file is valid again; nothing to change", "file", before.File)
	case asked:
		p.log.Info("Reloaded the configuration; nothing changed", "file", before.File)
	}
	p.unusable = false
}

// notReloaded logs why a changed file does not take effect.
func (p *proxy) notReloaded(err error) {
	p.unusable = true
	p.log.Error("Invalid configuration file; keeping the previous settings", "file", p.config().File, "err", err)
	p.publish(event.ConfigIgnored(p.config().NodeName, p.config().File, err))
}

// loadConfig reads the configuration of the command line.
func loadConfig(args []string) (*config.Config, error) {
	opts := config.NewOptions(all.Modes())
	flags := pflag.NewFlagSet("kube-proxy", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	opts.AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		return nil, fmt.Errorf("the command line: %w", err) // it has parsed before
	}
	return opts.Complete(flags.Args())
}

// apply applies a valid configuration in which only live fields have changed. The error describes
// what cannot be changed.
func (p *proxy) apply(before, after *wiring.Config) error {
	p.present.Store(after)
	p.reloaded.Store(true)
	if before.Logging.Verbosity != after.Logging.Verbosity {
		p.setVerbosity(after.Logging.Verbosity)
	}
	p.logs.SetVModule(after.Logging.VModule)
	was, is := before.Resolved.Tables, after.Resolved.Tables
	var errs []error
	for _, f := range p.families {
		if c, ok := f.plane.(mode.Configurable); ok {
			if err := c.Configure(after.Plane(f.name).Blocks); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", f.name, err))
			}
		}
		if was.MinSyncPeriod != is.MinSyncPeriod {
			f.engine.SetMinSyncPeriod(is.MinSyncPeriod)
		}
		if was.SyncPeriod != is.SyncPeriod {
			f.engine.SetAuditPeriod(is.SyncPeriod)
		}
		// Frontends depend on it: every Service is resolved again, and differences are written.
		if !reflect.DeepEqual(before.Policy(f.name), after.Policy(f.name)) {
			f.engine.ResolveAll()
		}
	}
	if before.Failover != after.Failover {
		p.configureFailover()
	}
	p.servers.health.Listen(healthAddr(after.Config), false)
	p.servers.status.Listen(after.Servers.Metrics)
	p.servers.status.SetProfiling(after.Servers.Profiling)
	p.servers.admin.Listen(after.Servers.AdminSocket)
	p.factsChanged() // the addresses of NodePorts may have changed
	report, err := system.Host{}.Reload(before.Host(), after.Host())
	p.reportOfHost(report)
	return errors.Join(append(errs, err)...)
}
