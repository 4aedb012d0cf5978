package preflight

import (
	"errors"
	"fmt"
	"slices"

	"kube-proxy/lb"
	"kube-proxy/mode"
)

// Kind is a kind of finding.
type Kind struct {
	ID string
	// Looks describes the check, Why its reason, and Remedy the action if it fails, for
	// docs/check.md and for findings without their own text.
	Looks, Why, Remedy string
	// Worst is the worst severity that the kind has, but for Unknown.
	Worst Severity
	// Everywhere: it is not of Linux alone.
	Everywhere bool
	// Live is the worst severity that a running proxy reports ([Glance]); "" if it does not look.
	Live Severity

	// needs returns the reasons why required facts are unknown; nil if all are known.
	needs func(*Facts) []error
	judge func(*judge)
}

// The facts that kinds need.
func sockets(f *Facts) []error          { return []error{f.Sockets.Err} }
func sysctls(f *Facts) []error          { return []error{f.Sysctls.Err} }
func linksAndRoutes(f *Facts) []error   { return []error{f.Links.Err, f.Routes.Err} }
func linksAndSysctls(f *Facts) []error  { return []error{f.Links.Err, f.Sysctls.Err} }
func memoryAndSysctls(f *Facts) []error { return []error{f.Memory.Err, f.Sysctls.Err} }

// Kinds returns all kinds of findings, in the order of the report.
func Kinds() []Kind {
	return slices.Concat(modeKinds(), otherKinds(), hostKinds(), networkKinds(), firewallKinds(), clusterKinds())
}

// Judge evaluates the facts for the setup that would run.
func Judge(s *Setup, f *Facts) (all []Finding) { return judgeKinds(Kinds(), s, f) }

func judgeKinds(kinds []Kind, s *Setup, f *Facts) (all []Finding) {
	for _, k := range kinds {
		if f.OS != "linux" && !k.Everywhere {
			continue
		}
		j := &judge{Setup: s, facts: f, kind: k}
		if k.needs == nil || !j.hidden(k.needs(f)...) {
			k.judge(j)
		}
		all = append(all, j.found...)
	}
	return all
}

// judge makes the findings of a kind.
type judge struct {
	*Setup
	facts *Facts
	kind  Kind
	found []Finding
}

// add records a finding. Findings without a needed action have no reason and no remedy.
func (j *judge) add(sev Severity, about, format string, args ...any) *Finding {
	f := Finding{ID: j.kind.ID, Severity: sev, About: about, Seen: fmt.Sprintf(format, args...)}
	if worse(sev, Info) > 0 {
		f.Why, f.Remedy = j.kind.Why, j.kind.Remedy
	}
	j.found = append(j.found, f)
	return &j.found[len(j.found)-1]
}

func (j *judge) ok(about, format string, args ...any)    { j.add(OK, about, format, args...) }
func (j *judge) info(about, format string, args ...any)  { j.add(Info, about, format, args...) }
func (j *judge) warn(about, format string, args ...any)  { j.add(Warning, about, format, args...) }
func (j *judge) wrong(about, format string, args ...any) { j.add(Error, about, format, args...) }

// unknown records an unknown fact, with the remedy.
func (j *judge) unknown(about string, err error) {
	f := j.add(Unknown, about, "cannot check: %v", err)
	f.Remedy = "Run the check as root on the node, or in a container with the node's network namespace, " +
		"CAP_SYS_ADMIN and CAP_NET_ADMIN."
	if errors.Is(err, ErrSlow) {
		f.Remedy = "Find what hangs on this node, then run the check again."
	}
}

// hidden records unknown facts, and reports whether there were any.
func (j *judge) hidden(errs ...error) (some bool) {
	for _, err := range errs {
		if err != nil {
			j.unknown("", err)
			return true
		}
	}
	return false
}

// nothing says that an object is absent, unless it could be invisible to the check.
func (j *judge) nothing(seen string, hides ...error) {
	if !j.hidden(hides...) {
		j.ok("", "%s", seen)
	}
}

// of reports whether a fact is known, and records it if not.
func of[T any](j *judge, about string, k Known[T]) (T, bool) {
	if k.Err != nil {
		j.unknown(about, k.Err)
	}
	return k.Value, k.Err == nil
}

// sysctl returns a value; "" if the kernel has none of that name, or if unknown.
func (j *judge) sysctl(name string) string { return j.facts.Sysctls.Value[name] }

// ability returns the test result of a mode in a family.
func (f *Facts) ability(name string, fam lb.Family) (Ability, bool) {
	i := slices.IndexFunc(f.Abilities, func(a Ability) bool { return a.Mode == name && a.Family == fam })
	if i < 0 {
		return Ability{}, false
	}
	return f.Abilities[i], true
}

// errUntried is why a mode cannot be chosen that was not tried.
var errUntried = errors.New("not tried")

// Runs returns the name of the mode that would run: the configured one, or its fallback here; "" if
// none can run, or if that could not be tested.
func Runs(s *Setup, f *Facts) string {
	m, _ := (&judge{Setup: s, facts: f}).running()
	return m.Name
}

// choose returns the mode that would run, as far as could be tested. Modules on disk count as
// present.
func choose(s *Setup, f *Facts) (mode.Choice, error) {
	list := slices.Clone(s.Modes)
	for i, m := range list {
		list[i].Able = func(with mode.Settings) error {
			switch a, ok := f.ability(m.Name, with.Family); {
			case !ok:
				return errUntried
			case a.Unasked != nil && !a.Loadable:
				return fmt.Errorf("%w: %w", errUntried, a.Unasked)
			default:
				return a.Able
			}
		}
	}
	return list.Choose(s.Configured, "", s.with(s.Families[0]))
}
