// Package measure takes the times of issue 2 that need an API server: a write there until a connection reaches the changed
// endpoint, a new service until it answers, the start of the process until the last service answers, and the processor time and
// memory that all this costs. Its benchmarks are what bench/ runs; command measure (cmd/measure) takes all of it once.
package measure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"kube-proxy/test/e2e/testbed"
)

// Config says what to measure.
type Config struct {
	Mode      testbed.Mode // nftables if zero
	Peer      string       // an upstream kube-proxy to measure instead of ours
	Services  int          // load services in the cluster
	Endpoints int          // of each load service
	Changes   int          // how many endpoint changes, and how many new services, are timed
	Keep      bool         // keep the filled etcd in bin/ and use it the next time
	StandIn   bool         // in place of etcd and the API server, an API server that is quickly filled with any number of services
	Logf      func(format string, args ...any)
}

// Result is what a proxy took. Times of changes count from just before the write to the API server until a connection has
// reached the endpoint, so they include what the API server and etcd take; Write is that part, measured by itself.
type Result struct {
	Services  int `json:"services"`
	Endpoints int `json:"endpoints"`
	Changes   int `json:"changes"`

	Write        Times         `json:"write"`        // the update of a slice, as its writer sees it
	Change       Times         `json:"change"`       // an updated slice until its endpoint is reached
	New          Times         `json:"new"`          // a new service with its slice until it answers
	Start        time.Duration `json:"start"`        // start of the process on an empty kernel until the last service answers
	Restart      time.Duration `json:"restart"`      // the same on the rules that are already there, until a change made meanwhile is in
	CPUPerChange time.Duration `json:"cpuPerChange"` // processor time of the proxy for one change, its share of idling included
	CPUOfStart   time.Duration `json:"cpuOfStart"`   // processor time of the proxy until the last service answered
	PeakMemory   int64         `json:"peakMemory"`   // largest resident size of the first process, bytes
	FirstConnect time.Duration `json:"firstConnect"` // connection set-up through the fastest of the services spread among the load
	LastConnect  time.Duration `json:"lastConnect"`  // and through the slowest
}

// Times are a distribution; of few values the 99th percentile is the largest.
type Times struct {
	P50 time.Duration `json:"p50"`
	P99 time.Duration `json:"p99"`
	Max time.Duration `json:"max"`
}

func times(took []time.Duration) Times {
	slices.Sort(took)
	rank := func(percent int) time.Duration { return took[(len(took)*percent+99)/100-1] }
	return Times{P50: rank(50), P99: rank(99), Max: rank(100)}
}

// Run measures on a test bed of its own.
func Run(ctx context.Context, config Config) (result *Result, err error) {
	if config.Changes < 1 {
		return nil, fmt.Errorf("measure: %d changes: there must be at least 1", config.Changes)
	}
	s, err := Open(ctx, config)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	r := &Result{Services: config.Services, Endpoints: config.Endpoints, Changes: config.Changes}
	for _, step := range []struct {
		name string
		do   func(context.Context, *Session) error
	}{
		{"start", r.start}, {"changes", r.changes}, {"new services", r.newServices}, {"memory", r.memory},
		{"connections", r.connections}, {"restart", r.restart},
	} {
		s.config.Logf("measuring %s", step.name)
		if err := step.do(ctx, s); err != nil {
			return nil, fmt.Errorf("measure: %s: %w", step.name, err)
		}
	}
	return r, nil
}

func (r *Result) start(ctx context.Context, s *Session) (err error) {
	if r.Start, err = s.Start(ctx); err != nil {
		return err
	}
	r.CPUOfStart, err = s.CPUTime()
	return err
}

func (r *Result) changes(ctx context.Context, s *Session) error {
	if _, err := s.Change(ctx); err != nil { // the first finds the process at the end of its start
		return err
	}
	before, err := s.CPUTime()
	if err != nil {
		return err
	}
	var write, change []time.Duration
	for range r.Changes {
		c, err := s.Change(ctx)
		if err != nil {
			return err
		}
		write, change = append(write, c.Write), append(change, c.Took)
		if c.Took > slow {
			s.config.Logf("%v", c)
		}
	}
	after, err := s.CPUTime()
	r.Write, r.Change = times(write), times(change)
	r.CPUPerChange = (after - before) / time.Duration(r.Changes)
	return err
}

func (r *Result) newServices(ctx context.Context, s *Session) error {
	var took []time.Duration
	for range r.Changes {
		c, err := s.Create(ctx)
		if err != nil {
			return err
		}
		took = append(took, c.Took)
		if c.Took > slow {
			s.config.Logf("%v", c)
		}
	}
	r.New = times(took)
	return nil
}

func (r *Result) connections(ctx context.Context, s *Session) error {
	u, err := s.ConnectTimes(ctx, 10*r.Changes)
	r.FirstConnect, r.LastConnect = u.first, u.last
	return err
}

func (r *Result) memory(_ context.Context, s *Session) (err error) {
	r.PeakMemory, err = s.PeakMemory()
	return err
}

func (r *Result) restart(ctx context.Context, s *Session) (err error) {
	r.Restart, err = s.Restart(ctx)
	return err
}
