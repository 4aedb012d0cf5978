// Package mode describes each mode as one value, [Mode], and chooses the mode that runs, from the configuration and the
// capabilities of this host.
//
//	plane/nftables ──Mode()──▶ plane/all ──List──▶ config   names, fields, defaults, help
//	plane/iptables                                 status   metrics
//	plane/ipvs, …                                  system   sysctls
//	                                               cleanup  leftovers
//	                                               cmd      Choose, New, Render
//
// A blank mode means the best mode that the host supports. The documents of v1.5 to v1.16 (S0 to S2) also describe
// fallbacks: from ipvs to iptables, from iptables to userspace. Each fallback is in the Choice, and is reported by log,
// event and metric. nftables and kernelspace, which these documents do not have, fail instead (G7).
//
// The package itself is pure: the functions in the values query the kernel.
package mode

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
)

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
	Mode Mode
	// Asked is what the flag or the file asks for, "" if nothing.
	Asked string
	// Annotated is what the Node's annotation asks for, where that counted; otherwise "".
	Annotated string
	// Steps are the fallbacks on the way from what was asked for to Mode.
	Steps []Step
	// Ignored says what is wrong with the annotation, if anything.
	Ignored string
}

// Choose finds the first mode of the list that can run: what is asked for or what it falls back to; where nothing is
// asked for, one of those that are tried unasked. annotation is the value of [Annotation], "" for none; it counts only
// where nothing is asked for. Whether a mode can serve the family on this host, with these settings, is asked once, and only of
// those that matter.
func (l List) Choose(asked, annotation string, with Settings) (Choice, error) {
	c := Choice{Asked: asked}
	start := asked
	if asked == "" && annotation != "" {
		may := l.Names(func(m Mode) bool { return m.Annotated }) // what S0 knows
		if slices.Contains(may, annotation) {
			c.Annotated, start = annotation, annotation
		} else {
			c.Ignored = fmt.Sprintf("ignored the Node's annotation %s=%q: want %s", Annotation, annotation, strings.Join(may, " or "))
		}
	}
	candidates := l.Chain(start)
	if start == "" {
		candidates = slices.DeleteFunc(slices.Clone(l), func(m Mode) bool { return m.Unasked != runtime.GOOS })
	}
	if len(candidates) == 0 || !candidates[0].Here() {
		return c, fmt.Errorf("mode %q: not available on this system", start)
	}
	var failed []Step
	for i, m := range candidates {
		var err error
		if i > 0 && m.Refuses != nil {
			err = m.Refuses(with)
		}
		if err == nil {
			err = m.Able(with)
		}
		if err == nil {
			c.Mode, c.Steps = m, failed
			return c, nil
		}
		if errors.Is(err, ErrAsked) {
			return c, fmt.Errorf("mode %s: %w", m.Name, err)
		}
		to := ""
		if i+1 < len(candidates) {
			to = candidates[i+1].Name
		}
		failed = append(failed, Step{From: m.Name, To: to, Why: err})
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
	return fmt.Errorf("no data plane can run on this host; the mode is %s; tried %s:\n%w",
		what, strings.Join(tried, ", "), errors.Join(errs...))
}
