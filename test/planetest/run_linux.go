package planetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/policy"
	"kube-proxy/test/scenario"
	"kube-proxy/trace"
)

// timeout is the time limit for an expected answer. A busy machine that emulates another one may
// need seconds for it.
const timeout = 30 * time.Second

// Config describes the plane to test.
type Config struct {
	// Mode is the proxy mode, the name of a column of docs/conformance.md.
	Mode string
	// Variant: the plane is a variant for tests, whose results are not recorded.
	Variant bool
	// New makes a plane. Run calls it, and all methods of the plane, on a thread in the node's
	// network namespace.
	New func(f lb.Family) (Plane, error)
	// Differs has the intended differences of this mode, by row of docs/behaviour.md, with the
	// reason. Run skips the scenarios that prove such a row; the page shows the reason.
	Differs map[string]string
	// Untouched: packets to service addresses without a frontend pass unchanged, unlike SV-62,
	// SV-63 and SV-66. Lines that expect a refusal or a drop then expect an answer of the sink,
	// which proves the difference. Run does not skip the scenarios of Differs.
	Untouched bool
	// Proxied: connections end at the plane, which opens others to the backends, and tries another
	// backend if one does not answer. Lines then expect, and so prove, the differences of such a
	// mode: see [ProxiedAddress] and the other constants. Run does not skip the scenarios of
	// Differs.
	Proxied bool
	// Model, if not nil, makes the model that answers in place of a kernel, for one scenario and
	// family. Run then does not call New, and needs no root. Stands names what the model represents
	// ("HNS as assumed").
	Model  func(lb.Family, scenario.Settings) (Model, error)
	Stands string
	// Otherwise has the scenarios that must show a difference of the model: these and no others. A
	// difference without an entry may be anywhere.
	Otherwise map[Modelled][]string
	// KeepsSources: backends of the model see the client's own address where lines expect it.
	KeepsSources bool
	// Recreates: a change of backends replaces the translating object, and ends its connections.
	Recreates bool
	// AffinityByAddress: each address of a Service has its own affinity. If a client's kind of
	// source has its own route, a change of backends may end the affinity.
	AffinityByAddress bool
	// AffinityByEndpoint: each endpoint of a service port remembers its clients, for all sets that
	// have it. A client that two sets sent to two endpoints may meet either once a set has both.
	AffinityByEndpoint bool
	// Holds: the node has the service addresses. Lines then expect, and so prove, that it answers
	// pings and refuses packets to their ports without a frontend. Run does not skip the scenarios
	// of Differs.
	Holds bool
	// Sockets: the plane serves the sockets of node1 and its pods, which are in a separate cgroup.
	// Endpoints may see these clients' own addresses where lines expect the node's. Conntrack must
	// have no entry of a connection that the plane's programs make.
	Sockets bool
	// Forget, if not nil, deletes connections of the scenario before that conntrack does not have.
	// Run calls it in the node's namespace.
	Forget func() error
	// DiffersIn has single scenarios from which this mode differs by intent, with the reason. Run
	// skips them; the page shows the reason.
	DiffersIn map[string]string
	// Trace describes the mode to [trace.Ask], as package mode does for the settings of New. Nil is
	// the zero trace.Mode.
	Trace func(lb.Family) trace.Mode
	// Core has the scenarios for emulated kernels, where all would take too long. With
	// PLANETEST_CORE=1 Run takes these alone. [Core] proves that they suffice.
	Core []string
	// TooLarge has the scenarios that Run skips in emulation, with PLANETEST_VM=1, and the reason.
	TooLarge map[string]string
	// Dir is the folder of scenarios. "" is test/testdata/scenarios, with the generated scenarios
	// and the churn of endpoints.
	Dir string
	// Drift, if not nil, damages the kernel state of a family's plane, as a program with the same
	// rights could. [History] calls it, and Break and TakeOver, in the node's namespace.
	Drift func(lb.Family, *rand.Rand) error
	// Break, if not nil, breaks one small part of that state, and returns a description.
	Break func(lb.Family, *rand.Rand) (what string, err error)
	// TakeOver, if not nil, leaves the kernel state of another proxy that took the plane's place.
	TakeOver func(lb.Family) error
}

// families are the two families in which every scenario runs, at the same time.
var families = []lb.Family{lb.IPv4, lb.IPv6}

// suite is one Run.
type suite struct {
	Config
	all  int // scenarios there are
	labs *pool
	// timeout is the time limit for an expected answer.
	timeout  time.Duration
	mu       sync.Mutex
	results  Results
	inquired inquired
}

// Run tests the plane with every scenario, with generated ones that are too large for a file, and
// with connections while endpoints flap. It needs root.
func Run(t *testing.T, cfg Config) {
	all := cfg.load(t)
	if cfg.Dir == "" {
		all = append(all, generated(t)...)
	}
	s := &suite{
		Config: cfg, all: len(all), labs: &pool{}, timeout: timeout,
		results: Results{Mode: cfg.Mode, Kernel: cfg.kernel(t), Model: cfg.Model != nil},
	}
	if os.Getenv("PLANETEST_CORE") != "" && cfg.Core != nil {
		var err error
		all, err = cfg.core(all)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d of %d scenarios (PLANETEST_CORE)", cfg.Mode, len(all), s.all)
	}
	t.Run("scenarios", func(t *testing.T) {
		for _, sc := range all {
			t.Run(sc.Name, func(t *testing.T) {
				t.Parallel()
				s.scenario(t, sc)
			})
		}
	})
	if cfg.Model == nil && cfg.Dir == "" {
		t.Run("churn", s.churn)
	}
	if err := s.labs.close(); err != nil {
		t.Errorf("remove the labs: %v", err)
	}
	t.Logf("%s: %s", cfg.Mode, &s.inquired)
	if cfg.Model != nil && cfg.Trace == nil {
		t.Logf("%s: NOT ASKED: trace does not know yet what this mode makes of the table", cfg.Mode)
	}
	if s.inquired.followed == 0 && !cfg.Variant {
		t.Errorf("%s: the plane does not report the kernel state (mode.Tracer)", cfg.Mode)
	} else if s.inquired.followed == 0 {
		t.Logf("%s: NOT ASKED: the plane does not report the kernel state yet (mode.Tracer)", cfg.Mode)
	}
	if cfg.Sockets && s.inquired.untracked == 0 {
		t.Errorf("%s: conntrack was searched for no connection of a program", cfg.Mode)
	}
	s.checkOtherwise(t)
	s.report(t)
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
}

// load reads the scenarios for planes that need root.
func load(t *testing.T, dir string) []*scenario.Scenario {
	t.Helper()
	return (&Config{Dir: dir}).load(t)
}

func (cfg *Config) load(t *testing.T) []*scenario.Scenario {
	t.Helper()
	if cfg.Model == nil {
		needRoot(t)
	}
	dir := cfg.Dir
	if dir == "" {
		var err error
		dir, err = scenario.Dir()
		if err != nil {
			t.Fatal(err)
		}
	}
	all, err := scenario.LoadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// differs returns the reason why the mode violates one of the scenario's rows, or "".
func (s *suite) differs(sc *scenario.Scenario) string {
	for _, row := range sc.Rows {
		if why := s.Differs[row]; why != "" {
			return row + ": " + why
		}
	}
	return ""
}

// scenario runs one scenario in both families.
func (s *suite) scenario(t *testing.T, sc *scenario.Scenario) {
	why := s.differs(sc)
	if in := s.DiffersIn[sc.Name]; in != "" {
		why = in
	}
	if why != "" && (!s.Untouched && !s.Proxied && !s.Holds || s.DiffersIn[sc.Name] != "") {
		s.record(sc, Result{Differs: why})
		t.Skip("this mode differs by intent: " + why)
	}
	vm := os.Getenv("PLANETEST_VM") != ""
	if left := s.TooLarge[sc.Name]; left != "" && vm {
		s.record(sc, Result{Left: left})
		t.Skip("too large for emulation: " + left)
	}
	result, failures, err := s.try(sc)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range failures {
		t.Error(f)
	}
	switch {
	case result.SCTP > 0 && vm:
		t.Errorf("%d lines need SCTP, which the kernels of the VMs have", result.SCTP)
	case result.SCTP > 0:
		t.Logf("%d lines need SCTP, which this kernel has not: proven in the VM run", result.SCTP)
	}
	result.Differs = why
	s.record(sc, result)
}

// maxStretch is how much longer than written a scenario's affinities last at most.
const maxStretch = 16

// try plays a scenario and returns its failures. If a client affinity may have expired on a slow
// machine, it plays the scenario again with longer affinities and waits.
func (s *suite) try(sc *scenario.Scenario) (Result, []string, error) {
	for stretch := 1; ; stretch *= 4 {
		result, failures, lapsed, err := s.play(sc, stretch)
		if err != nil || !lapsed || stretch == maxStretch {
			return result, failures, err
		}
	}
}

// play plays a scenario in both families at once, with affinities stretched by a factor. It returns
// the failures, and whether an expired affinity may have caused one of them.
func (s *suite) play(sc *scenario.Scenario, stretch int) (_ Result, failures []string, lapsed bool, _ error) {
	if s.Model != nil {
		return s.putToModel(sc)
	}
	bridge := sc.Settings.Policy.DetectLocal == policy.BridgeInterface
	lab, err := s.labs.get(netlab.Options{Bridge: bridge, Cgroup: s.Sockets})
	if err != nil {
		return Result{}, nil, false, err
	}
	defer s.labs.put(lab)
	if err := lab.prepare(sc.Settings); err != nil {
		return Result{}, nil, false, err
	}
	if s.Forget != nil {
		if err := lab.lab.Do(netlab.Node1, s.Forget); err != nil {
			return Result{}, nil, false, fmt.Errorf("forget connections: %w", err)
		}
	}
	var both sync.WaitGroup
	runs := make([]*run, len(families))
	for i, f := range families {
		runs[i] = s.newRun(sc, lab, f)
		runs[i].stretch = stretch
		runs[i].replay.Stretch(stretch)
		both.Go(runs[i].play)
	}
	both.Wait()
	result := Result{Families: map[string]string{}}
	for _, r := range runs {
		lapsed = lapsed || r.lapsed
		result.SCTP += int(r.sctp.Load())
		note(&result.Proxied, r.proxied)
		result.Families[r.family.String()] = r.verdict()
		failures = append(failures, r.failures...)
	}
	return result, failures, lapsed, nil
}

// run is one scenario in one family.
type run struct {
	s      *suite
	sc     *scenario.Scenario
	lab    *field
	family lb.Family
	// ports are the listening ports of hosts; nil means Ports.
	ports []uint16
	// inquiry has the outcomes of the packets of the current state.
	inquiry inquiry
	// compared: Differences was called in an earlier state.
	compared bool
	replay   *scenario.Replay
	plane    Plane
	flows    cleaner // none if a model replaces the kernel
	table    *lb.Table
	state    string
	conns    map[string]*netlab.Conn
	begun    map[string]chan attempt
	// stretch multiplies the scenario's affinities and waits.
	stretch int
	// restarted: another plane has taken the place of the first.
	restarted bool
	passed    atomic.Int32 // lines that did as they should
	sctp      atomic.Int32 // lines that this kernel cannot send

	mu       sync.Mutex
	proxied  []Proxied            // differences because connections end at the plane
	model    Model                // nil: there is a lab
	asked    map[string]modelled  // connections of the model that stay open
	modelled []Modelled           // differences of the model
	affine   map[client]time.Time // when each client with an affinity connected last
	lapsed   bool                 // something failed after an affinity may have been over
	failures []string
}

func (s *suite) newRun(sc *scenario.Scenario, lab *field, f lb.Family) *run {
	return &run{s: s, sc: sc, lab: lab, family: f, replay: sc.Replay(f), conns: map[string]*netlab.Conn{},
		begun: map[string]chan attempt{}, asked: map[string]modelled{}, stretch: 1, affine: map[client]time.Time{}}
}

func (r *run) verdict() string {
	switch {
	case len(r.failures) > 0:
		return Fails
	case r.passed.Load() == 0 && r.sctp.Load() == 0:
		return NotApplicable
	case r.passed.Load() == 0:
		return NeedsSCTP
	}
	return Passes
}

func (r *run) failf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, r.heading()+fmt.Sprintf(format, args...))
}

// play runs the states.
func (r *run) play() {
	defer r.end()
	if err := r.onNode(r.start); err != nil {
		r.failf("start: %v", err)
		return
	}
	for first := true; ; first = false {
		step, ok, err := r.replay.Next()
		if err != nil {
			r.failf("%v", err)
		}
		if err != nil || !ok {
			return
		}
		r.state, r.table = step.State.Name, step.Table
		if err := r.onNode(func() error { return r.advance(step, first) }); err != nil {
			r.failf("%v", err)
			return
		}
		r.packets(step.State.Packets)
		if r.model == nil {
			r.inquire()
		} else {
			r.noDifferences(step.Table)
		}
	}
}

// onNode runs f on a thread in the node's namespace.
func (r *run) onNode(f func() error) error {
	if r.model != nil {
		return f()
	}
	return r.lab.lab.Do(netlab.Node1, f)
}

// start makes the plane, on top of the state of the previous scenario, and empties it.
func (r *run) start() error {
	if err := r.renew(); err != nil {
		return err
	}
	if _, err := ResetAll(context.Background(), r.plane, &lb.Table{}); err != nil {
		return fmt.Errorf("reset to nothing: %w", err)
	}
	return nil
}

// renew replaces the plane by a new one; the old one leaves its rules in force.
func (r *run) renew() error {
	if r.plane != nil {
		if err := shut(r.plane); err != nil {
			return fmt.Errorf("close the plane: %w", err)
		}
		r.plane = nil
		if r.flows.stop != nil {
			r.flows.stop()
		}
	}
	create := func() (Plane, error) { return r.s.New(r.family) }
	if r.model != nil {
		create = r.model.New
	}
	p, err := create()
	if err != nil { // p may be a nil pointer of the plane's own type
		return fmt.Errorf("new plane: %w", err)
	}
	r.plane = p
	if r.model == nil {
		r.flows, err = newCleaner(r.family, p)
	}
	return err
}

// advance brings the plane to the next state.
func (r *run) advance(step scenario.Step, first bool) error {
	// Long: a machine in emulation runs all scenarios at the same time.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	first, err := r.apply(ctx, step, first)
	if err == nil && r.model == nil {
		r.flows.applied(step, first)
	}
	return err
}

// apply has the plane take a step, and reports whether it is the first one of the plane.
func (r *run) apply(ctx context.Context, step scenario.Step, first bool) (bool, error) {
	if step.State.Restart {
		if err := r.renew(); err != nil {
			return first, err
		}
		first, r.restarted = true, true
	}
	if !first && step.NewNode {
		if err := r.plane.SetNode(ctx, step.Table.Node); err != nil {
			return first, fmt.Errorf("set node: %w", err)
		}
	}
	if first {
		if _, err := ResetAll(ctx, r.plane, step.Table); err != nil {
			return first, fmt.Errorf("reset: %w", err)
		}
		return first, nil
	}
	if len(step.Changes) == 0 {
		return first, nil
	}
	if err := ApplyAll(ctx, r.plane, step.Changes); err != nil {
		return first, fmt.Errorf("apply %d changes: %w", len(step.Changes), err)
	}
	return first, nil
}

func (r *run) end() {
	for _, c := range r.conns {
		if err := c.Close(); err != nil {
			r.failf("%v", err)
		}
	}
	if err := shut(r.plane); err != nil {
		r.failf("close the plane: %v", err)
	}
	if r.flows.stop != nil {
		r.flows.stop()
	}
}

// packets runs the lines of a section: all at once, except where "then" and "wait" separate them.
func (r *run) packets(lines []scenario.Packet) {
	if r.model != nil { // it has no time, and answers at once
		for _, p := range lines {
			r.line(p)
		}
		return
	}
	var group []scenario.Packet
	flush := func() {
		var all sync.WaitGroup
		for _, p := range group {
			all.Go(func() { r.line(p) })
		}
		all.Wait()
		group = nil
	}
	for _, p := range lines {
		switch {
		case p.Verb == scenario.Then:
			flush()
			time.Sleep(p.Wait * time.Duration(r.stretch))
			continue
		case p.Conn != "" && slices.ContainsFunc(group, func(q scenario.Packet) bool { return q.Conn == p.Conn }):
			flush()
		}
		group = append(group, p)
	}
	flush()
}

// heading begins a failure: the place, and the story.
func (r *run) heading() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s", r.sc.Name, r.family)
	if r.state != "" {
		fmt.Fprintf(&b, ", step %s", r.state)
	}
	fmt.Fprintf(&b, " (%s)\n", strings.Join(r.sc.Rows, ", "))
	for line := range strings.Lines(r.sc.Story) {
		b.WriteString("    " + line)
	}
	b.WriteString("\n")
	return b.String()
}

// dumpText returns the plane's state, if PLANETEST_DUMP is set.
func (r *run) dumpText() string {
	if os.Getenv("PLANETEST_DUMP") == "" {
		return ""
	}
	text, err := "", error(nil)
	if e := r.onNode(func() error { text, err = Dump(r.plane); return nil }); e != nil || err != nil {
		return fmt.Sprintf("(no dump: %v %v)", e, err)
	}
	return text
}

// resultsDir is where recorded results lie, relative to the module.
func resultsDir() (string, error) {
	dir, err := scenario.Dir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "..", "..", "planetest", "testdata", "results"), nil
}
