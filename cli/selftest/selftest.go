// Package selftest tests the properties of a mode on one machine, in nine steps ("kube-proxy
// selftest"):
//
//	1 node ─▶ 2 network ─▶ 3 endpoints ─▶ 4 refusals ─▶ 5 load balancers ─▶
//	6 latency ─▶ 7 data path ─▶ 8 restarts ─▶ 9 service
//
// On Windows the steps call the Host Networking Service with documentation addresses. On Linux they
// run this program in a lab of network namespaces and send packets. Each result is a [Line] of a
// transcript, which package hnsfake reads. A step that does not apply has one line with the reason.
//
// It uses HNS, not the plane, because a Reset would delete real Services' load balancers. It
// creates those that [hns.Render] returns, and holds the writer lock to prevent audits. Step 7
// sends packets from pods of the image agnhost netexec, named by --echo, because the command cannot
// act in a pod; it creates none, because a node must be provable before it joins.
package selftest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"kube-proxy/cli/preflight"
	"kube-proxy/plane/hns"
)

// Titles are the titles of steps 1 to 9.
var Titles = [9]string{"node", "network", "endpoint round trip", "refusals", "load balancers", "latency", "data path",
	"restarts", "service control"}

// Line is a result.
type Line struct {
	// Step is 1 to 9.
	Step int `json:"step"`
	// Name is unique in a transcript, such as "filter" or "refusal/same-key".
	Name string `json:"name"`
	// Value is a measured value, or null.
	Value json.RawMessage `json:"value,omitempty"`
	// Result is [Failed], [Skipped] or "".
	Result string `json:"result,omitempty"`
	// Text explains the result.
	Text string `json:"text,omitempty"`
	// Source is "measured"; assumed transcripts name their source.
	Source string `json:"source"`
}

// Failed: the node lacks something that the proxy needs. Skipped: the property was not tested.
const (
	Failed  = "failed"
	Skipped = "skipped"
)

// echoPort is the port of the lab's pods.
const echoPort = 8080

// Config configures a test.
type Config struct {
	// Mode is the running mode, and Configured the one in flags or file, or "". Terminates: its
	// connections end at the proxy.
	Mode, Configured string
	Terminates       bool
	// Findings are those of [preflight.Judge].
	Findings []preflight.Finding
	// Sizes are the numbers of load balancers or Services in step 6, ascending.
	Sizes []int
	// Timeout is the time that a change may take.
	Timeout time.Duration
	// Program is this program, for the Linux lab.
	Program string

	// HNS is nil for the Linux lab. Plane has the network, the source VIP and DSR.
	HNS   hns.HNS
	Plane hns.Config
	// Elevated: this process has administrator rights.
	Elevated bool
	// Echo are servers that answer as `agnhost netexec` does, and EchoVIP is an address for their
	// load balancers (step 7).
	Echo    []netip.AddrPort
	EchoVIP netip.Addr
	// Dial connects from the node.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Restart restarts HNS (step 8), if requested.
	Restart func(context.Context) error
	// Service runs this program as a service and checks claims (step 9); nil without a service
	// control manager.
	Service func(ctx context.Context, check func(name, claim string, err error) bool)
}

// Run runs the steps and calls each with every line at once. It reports whether no line failed.
func Run(ctx context.Context, cfg Config, each func(Line)) bool {
	r := &run{Config: cfg, each: each}
	steps, end := r.inLab()
	if cfg.HNS != nil {
		steps, end = r.onHNS()
	}
	goesOn := true
	for i, step := range steps {
		if r.step = i + 1; goesOn {
			goesOn = step(ctx)
		} else {
			r.skip("step", "it depends on a step that failed")
		}
	}
	end(context.WithoutCancel(ctx))
	return !r.failed
}

// run is one run. A step returns false if later ones depend on its failure.
type run struct {
	Config
	each   func(Line)
	step   int
	failed bool
	lab    lab
	// connect connects a client of step 7 and returns the server's answer.
	connect func(ctx context.Context, from string, to netip.AddrPort) (reply, error)
}

func (r *run) write(name, result, text string, value any) {
	l := Line{Step: r.step, Name: name, Result: result, Text: text, Source: "measured"}
	if value != nil {
		l.Value, _ = json.Marshal(value) // numbers, strings and HNS objects
	}
	r.failed = r.failed || result == Failed
	r.each(l)
}

// answer writes a value.
func (r *run) answer(name string, value any) { r.write(name, "", "", value) }

// skip writes why a claim is not tested.
func (r *run) skip(name, why string) bool {
	r.write(name, Skipped, why, nil)
	return true
}

// check writes whether a claim holds, and returns it.
func (r *run) check(name, claim string, err error) bool {
	if err != nil {
		r.write(name, Failed, claim+": "+err.Error(), nil)
		return false
	}
	r.write(name, "", claim, nil)
	return true
}

// node is step 1: the findings of `kube-proxy check` on system, privileges and mode.
func (r *run) node(context.Context) bool {
	var other error
	if r.Mode == "" || r.Configured != "" && r.Configured != r.Mode {
		other = fmt.Errorf("%q would run, not %q", r.Mode, r.Configured)
	}
	able := r.check("mode", "the requested mode can run here", other)
	for _, f := range r.Findings {
		switch f.ID {
		case "privileges", "kernel", "mode-configured":
			var err error
			if f.Severity == preflight.Error {
				err, able = errors.New(f.Remedy), false
			}
			r.check(f.ID, f.Seen, err)
		}
	}
	return able
}

// service is step 9 on Windows.
func (r *run) service(ctx context.Context) bool {
	if r.Service == nil {
		return r.skip("service", "this machine has no service control manager")
	}
	r.Service(ctx, r.check)
	return true
}

// await is [Await] with the run's Timeout.
func (r *run) await(ctx context.Context, f func() error) error { return Await(ctx, r.Timeout, f) }

// Await calls f until it succeeds, and returns its last error after timeout.
func Await(ctx context.Context, timeout time.Duration, f func() error) error {
	end := time.Now().Add(timeout)
	for {
		err := f()
		if err == nil || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}
