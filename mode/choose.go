// Package mode describes each mode as one value, [Mode], and chooses the mode that runs, from the
// configuration and the capabilities of this host.
//
//	plane/nftables ──Mode()──▶ plane/all ──List──▶ config   names, fields, defaults, help
//	plane/iptables                                 status   metrics
//	plane/ipvs, …                                  system   sysctls
//	                                               cleanup  leftovers
//	                                               cmd      Choose, New, Render
//
// A blank mode means the best mode that the host supports. The documents of v1.5 to v1.16 (S0 to
// S2) also describe fallbacks: from ipvs to iptables, from iptables to userspace. Each fallback is
// in the Choice, and is reported by log, event and metric. nftables and kernelspace, which these
// documents do not have, fail instead (G7).
//
// The package itself is pure: the functions in the values query the kernel.
package mode

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
)

// Annotation is the annotation of the Node object that chooses the mode where it is blank (S0).
const Annotation = "net.experimental.kubernetes.io/proxy-mode"

// Step is one mode of the configuration that cannot run here.
type Step struct {
	From, To string
	// Why is the support that From lacks here.
	Why error
}

// String returns the step as a sentence without its end.
func (s Step) String() string {
	return fmt.Sprintf("mode %s cannot run on this host, using %s instead: %v", s.From, s.To, s.Why)
}

// Choice is the data plane that runs, and why it is this one.
type Choice struct {
	// Mode is the running mode.
	Mode Mode
	// Configured is the mode of the flag or the file, "" if neither has one.
	Configured string
	// Annotated is the mode of the Node's annotation, where that counted; otherwise "".
	Annotated string
	// Steps are the fallbacks from the configured mode to Mode.
	Steps []Step
	// Ignored is the reason why the annotation is ignored, if it is.
	Ignored string
}

// Choose finds the first mode of the list that can run: the configured one or one of its fallbacks;
// without a configured mode, one of the modes with Unasked. annotation is the value of
// [Annotation], "" for none; it counts only without a configured mode. Choose calls Able once, and
// only for the modes that matter.
func (l List) Choose(asked, annotation string, with Settings) (Choice, error) {
	c := Choice{Configured: asked}
	start := asked
	if asked == "" && annotation != "" {
		may := l.Names(func(m Mode) bool { return m.Annotated }) // modes that S0 has
		if slices.Contains(may, annotation) {
			c.Annotated, start = annotation, annotation
		} else {
			c.Ignored = fmt.Sprintf("ignored the Node's annotation %s=%q: want %s", Annotation, annotation,
				strings.Join(may, " or "))
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

// impossible returns the error if neither the configured mode nor a fallback can run.
func impossible(asked string, failed []Step) error {
	errs := make([]error, len(failed))
	for i, s := range failed {
		errs[i] = fmt.Errorf("mode %s: %w", s.From, s.Why)
	}
	if len(errs) == 1 {
		return errs[0]
	}
	what := cmp.Or(asked, "blank")
	tried := make([]string, len(failed))
	for i, s := range failed {
		tried[i] = s.From
	}
	return fmt.Errorf("no data plane can run on this host; the mode is %s; tried %s:\n%w",
		what, strings.Join(tried, ", "), errors.Join(errs...))
}
