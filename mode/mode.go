// Package mode chooses the data plane: from what was asked for and from what this host can do.
//
// A blank mode is the best that the host can do. The documents of v1.5 to v1.16 (S0 to S2) also describe
// what happens when a mode cannot work: ipvs gives way to iptables, iptables to userspace. Nothing gives way
// in silence: each step is in the Choice, to be told by log, event and metric. A mode that nobody could take for
// another, nftables and ebpf, fails instead (G7).
//
// The package is pure. The caller says what can run here, and tells what was chosen.
package mode

import (
	"errors"
	"fmt"
	"strings"
)

// The data planes.
const (
	IPTables  = "iptables"
	IPVS      = "ipvs"
	NFTables  = "nftables"
	EBPF      = "ebpf"
	Userspace = "userspace"
)

// ErrNotBuilt is wrapped by the reason why a mode cannot run that this version does not contain.
var ErrNotBuilt = errors.New("not built yet in this version")

// Annotation is the annotation of the Node object that chooses the mode where it is blank (S0).
const Annotation = "net.experimental.kubernetes.io/proxy-mode"

// Step is one mode that was wanted and cannot run here.
type Step struct {
	From, To string
	// Why says what From lacks here.
	Why error
}

// String returns the step as a sentence without its end.
func (s Step) String() string {
	return fmt.Sprintf("mode %s cannot run on this host, using %s instead: %v", s.From, s.To, s.Why)
}

// Choice is the data plane that runs, and why it is this one.
type Choice struct {
	// Mode is what runs.
	Mode string
	// Asked is what the flag or the file asks for, "" if nothing.
	Asked string
	// Annotated is what the Node's annotation asks for, where that counted; otherwise "".
	Annotated string
	// Steps are the fallbacks on the way from what was asked for to Mode.
	Steps []Step
	// Ignored says what is wrong with the annotation, if anything.
	Ignored string
}

// fallbacks are the modes to try, the first first. A blank mode comes before userspace to what is newer than the
// documents: a host without iptables is still served by the kernel.
var fallbacks = map[string][]string{
	"":        {IPTables, NFTables, Userspace},
	IPTables:  {IPTables, Userspace},
	IPVS:      {IPVS, IPTables, Userspace},
	Userspace: {Userspace},
	NFTables:  {NFTables},
	EBPF:      {EBPF},
}

// Choose finds the first mode that can run. annotation is the value of [Annotation], "" for none; it counts only
// where nothing is asked for. can returns nil if the mode can run on this host, else why not; it is
// asked once for each mode, and only for those that matter.
func Choose(asked, annotation string, can func(mode string) error) (Choice, error) {
	c := Choice{Asked: asked}
	start := asked
	if asked == "" {
		switch annotation {
		case "":
		case IPTables, Userspace: // what S0 knows
			c.Annotated, start = annotation, annotation
		default:
			c.Ignored = fmt.Sprintf("the Node's annotation %s=%q is ignored: want %s or %s", Annotation, annotation, IPTables, Userspace)
		}
	}
	candidates, ok := fallbacks[start]
	if !ok {
		return c, fmt.Errorf("mode %q: there is no such mode here", start)
	}
	var failed []Step
	for i, m := range candidates {
		err := can(m)
		if err == nil {
			c.Mode, c.Steps = m, failed
			return c, nil
		}
		to := ""
		if i+1 < len(candidates) {
			to = candidates[i+1]
		}
		failed = append(failed, Step{From: m, To: to, Why: err})
	}
	return c, impossible(start, failed)
}

// impossible is the error when nothing of what was asked for can run.
func impossible(asked string, failed []Step) error {
	errs := make([]error, len(failed))
	for i, s := range failed {
		errs[i] = fmt.Errorf("mode %s: %w", s.From, s.Why)
	}
	if len(errs) == 1 {
		return errs[0]
	}
	what := asked
	if what == "" {
		what = "blank"
	}
	tried := make([]string, len(failed))
	for i, s := range failed {
		tried[i] = s.From
	}
	return fmt.Errorf("no data plane can run on this host; the mode is %s, so %s were tried:\n%w",
		what, strings.Join(tried, ", "), errors.Join(errs...))
}
