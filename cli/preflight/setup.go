package preflight

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"time"

	"kube-proxy/internal/system"
	"kube-proxy/lb"
	"kube-proxy/mode"
)

// ErrSlow means that a probe timed out.
var ErrSlow = errors.New("timed out")

// Setup describes what would run: the configuration.
type Setup struct {
	Modes mode.List
	// Source says where the configuration comes from.
	Source string
	// Configured is the configured mode; "" for the best that the host supports.
	Configured string
	// Running is the mode of a proxy that runs; nil to choose one by Modes and Configured.
	Running *mode.Mode
	// Families are those to serve, the primary one first; at least one.
	Families []lb.Family
	// NodeName is the name of the Node, and Hostname the machine's hostname.
	NodeName, Hostname string
	PodCIDRs           []netip.Prefix
	// PodInterface is the bridge of the pods, or the prefix of their interfaces' names; "" if not
	// configured.
	PodInterface string
	// Healthz and Metrics are where servers are to listen, not valid if nowhere.
	Healthz, Metrics netip.AddrPort

	// With returns the settings of a mode for a family; nil for the family alone.
	With func(lb.Family) mode.Settings
	// Host returns the configured settings of the host in a mode.
	Host func(mode.Mode) (system.Settings, error)
	// InTheWay asks the proxy that runs for what it knows of rules of other programs; nil for none.
	InTheWay func(context.Context) ([]InTheWay, error)
	// API queries the API server; nil if Services come from a folder.
	API func(context.Context) *Cluster
	// WriterGroup is the log group of netfilter that a running kube-proxy holds.
	WriterGroup uint16

	// LoadModules: the kernel may load modules for a question.
	LoadModules bool
	// Timeout is how long a probe may take; 0 for 15 seconds.
	Timeout time.Duration
}

func (s *Setup) with(f lb.Family) mode.Settings {
	if s.With == nil {
		return mode.Settings{Family: f}
	}
	return s.With(f)
}

func (s *Setup) timeout() time.Duration {
	return cmp.Or(s.Timeout, 15*time.Second)
}

// inTheWay asks the proxy that runs.
func (s *Setup) inTheWay(ctx context.Context) Known[[]InTheWay] {
	if s.InTheWay == nil {
		return Known[[]InTheWay]{Err: errors.New("no proxy to ask")}
	}
	return within(ctx, s.timeout(), s.InTheWay)
}

// cluster queries the API server; nil if Services come from a folder.
func (s *Setup) cluster(ctx context.Context) *Cluster {
	if s.API == nil {
		return nil
	}
	k := within(ctx, s.timeout(), func(ctx context.Context) (*Cluster, error) { return s.API(ctx), nil })
	if k.Value == nil {
		return &Cluster{Version: known("", k.Err)}
	}
	return k.Value
}

// within returns the result of a probe, or that it timed out. An abandoned probe runs until it ends
// by itself, or the process does.
func within[T any](ctx context.Context, timeout time.Duration, probe func(context.Context) (T, error)) Known[T] {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	answer := make(chan Known[T], 1)
	go func() {
		defer cancel()
		answer <- known(probe(ctx))
	}()
	select {
	case k := <-answer:
		return k
	case <-ctx.Done():
		select {
		case k := <-answer: // at the last moment
			return k
		default:
			var none T
			return known(none, ErrSlow)
		}
	}
}
