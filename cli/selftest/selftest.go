// Package selftest proves on one machine what a mode claims, in nine steps ("kube-proxy selftest"):
//
//	1 node ─▶ 2 network ─▶ 3 endpoints ─▶ 4 refusals ─▶ 5 load balancers ─▶ 6 latency ─▶ 7 data path ─▶ 8 restarts ─▶ 9 service
//
// On Windows the steps ask the Host Networking Service, with addresses of documentation ranges. On Linux
// they start this program in a lab of network namespaces and send packets. Each answer is a [Line] of a
// transcript, which package hnsfake can follow. A step that does not apply has one line with the reason.
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

// Titles are the steps, the first of which is number 1.
var Titles = [9]string{"node", "network", "endpoint round trip", "refusals", "load balancers", "latency", "data path", "restarts", "service control"}

// Line is a question and its answer.
type Line struct {
	// Step is 1 to 9.
	Step int `json:"step"`
	// Name names the question, unique in a transcript, such as "filter" or "refusal/same-key".
	Name string `json:"name"`
	// Value is the measured answer; null where there is none.
	Value json.RawMessage `json:"value,omitempty"`
	// Result is "" for an answer, [Failed] or [Skipped].
	Result string `json:"result,omitempty"`
	// Text explains the result to a person.
	Text string `json:"text,omitempty"`
	// Source is "measured"; assumed transcripts name another.
	Source string `json:"source"`
}

// Failed: the node does not do what this proxy needs. Skipped: the question was not asked.
const (
	Failed  = "failed"
	Skipped = "skipped"
)

// echoPort is where pods of the lab answer.
const echoPort = 8080

// Config says what is tested.
type Config struct {
	// Mode is the mode that runs, and Asked the requested one, "" for none. Terminates: its connections end at the proxy.
	Mode, Asked string
	Terminates  bool
	// Findings are those of [preflight.Judge].
	Findings []preflight.Finding
	// Sizes are the numbers of load balancers, or of Services, at which step 6 measures, in ascending order.
	Sizes []int
	// Patience is how long a change may take until it is in force.
	Patience time.Duration
	// Program is this program, which the lab of Linux starts.
	Program string

	// HNS is that of this machine; nil for the lab of Linux. Plane has the network, the source VIP and DSR.
	HNS   hns.HNS
	Plane hns.Config
	// Echo are pods that answer as `agnhost netexec` does, and EchoVIP is an address for their load balancers (step 7).
	Echo    []netip.AddrPort
	EchoVIP netip.Addr
	// Dial opens connections of the node.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Restart restarts HNS (step 8); nil if that is not requested.
	Restart func(context.Context) error
	// Service has the service control manager run this program, and checks claims (step 9); nil where there is none.
	Service func(ctx context.Context, check func(name, claim string, err error) bool)
}

// Run takes the steps, and calls each with every line as it comes. It reports whether none failed.
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

// run is one run of the steps. A step returns false if those after it can prove nothing.
type run struct {
	Config
	each   func(Line)
	step   int
	failed bool
	lab    lab
	// connect opens a connection of a client, which step 7 names, and asks the server who it is.
	connect func(ctx context.Context, from string, to netip.AddrPort) (reply, error)
}

func (r *run) write(name, result, text string, value any) {
	l := Line{Step: r.step, Name: name, Result: result, Text: text, Source: "measured"}
	if value != nil {
		l.Value, _ = json.Marshal(value) // numbers, texts and objects of HNS
	}
	r.failed = r.failed || result == Failed
	r.each(l)
}

// answer writes a measured value.
func (r *run) answer(name string, value any) { r.write(name, "", "", value) }

// skip writes why a question is not asked.
func (r *run) skip(name, why string) bool {
	r.write(name, Skipped, why, nil)
	return true
}

// check writes whether a claim holds, and returns that.
func (r *run) check(name, claim string, err error) bool {
	if err != nil {
		r.write(name, Failed, claim+": "+err.Error(), nil)
		return false
	}
	r.write(name, "", claim, nil)
	return true
}

// node is step 1: what `kube-proxy check` finds of the system, the privileges and the mode.
func (r *run) node(context.Context) bool {
	var other error
	if r.Mode == "" || r.Asked != "" && r.Asked != r.Mode {
		other = fmt.Errorf("%q would run, not %q", r.Mode, r.Asked)
	}
	able := r.check("mode", "the requested mode can run here", other)
	for _, f := range r.Findings {
		switch f.ID {
		case "privileges", "kernel", "mode-asked":
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

// await is [Await] with the run's Patience.
func (r *run) await(ctx context.Context, f func() error) error { return Await(ctx, r.Patience, f) }

// Await calls f until it returns nil, and returns its last error after patience.
func Await(ctx context.Context, patience time.Duration, f func() error) error {
	end := time.Now().Add(patience)
	for {
		err := f()
		if err == nil || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}
