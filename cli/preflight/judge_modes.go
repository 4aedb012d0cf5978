package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"kube-proxy/lb"
	"kube-proxy/mode"
)

func modeKinds() []Kind {
	return []Kind{
		{ID: "configuration", Worst: Info, Everywhere: true, judge: func(j *judge) { j.info("", "%s", j.Source) },
			Looks:  "whose configuration is judged: that of the running proxy, unless a flag of a proxy is given",
			Why:    "All findings are about a proxy with this configuration.",
			Remedy: "Pass the flags of another proxy to judge that."},
		{ID: "privileges", Worst: Error, judge: (*judge).privileges, needs: func(f *Facts) []error {
			return []error{f.Lacks.Err}
		},
			Looks: "the capabilities of this process",
			Why: "Rules need CAP_NET_ADMIN in the node's network namespace. In modes iptables and ipvs, the " +
				"iptables programs also need CAP_NET_RAW for rules with ipsets and for the legacy back end.",
			Remedy: "Run the check as the proxy will run: as root, or with the capabilities of its container."},
		{ID: "namespace", Worst: Info, judge: (*judge).namespace,
			Looks: "whether this is the network namespace of process 1",
			Why: "All findings are about the network namespace in which the check runs. The proxy's pod has " +
				"hostNetwork: true.", Remedy: "Run the check with hostNetwork: true."},
		{ID: "kernel", Worst: Error, judge: (*judge).kernel, needs: func(f *Facts) []error {
			return []error{f.Kernel.Err}
		},
			Looks: "the kernel's version", Why: "Kernels before 5.10 are not supported: sets and expressions that " +
				"the rules need are missing or broken.",
			Remedy: "Install Linux 5.10 or later from a supported distribution."},
		{ID: "mode", Everywhere: true, Worst: Warning, judge: (*judge).modes,
			Looks:  "whether each mode can run here for each family, tried in a temporary network namespace",
			Why:    "If the host cannot run the configured mode, the proxy exits or falls back to another mode.",
			Remedy: "Provide what is missing, if it concerns the mode that would run."},
		{ID: "mode-configured", Everywhere: true, Worst: Error, judge: (*judge).asked,
			Looks:  "the configured mode, and the mode that would run",
			Why:    "The proxy exits if no mode can run. A fallback mode behaves differently from the configured one.",
			Remedy: "Provide what is missing, or configure a mode that can run: --proxy-mode (mode)."},
		{ID: "mode-waits", Everywhere: true, Worst: Warning, judge: (*judge).waits,
			Looks: "what mode kernelspace needs of this node: the HNS network, its ManagementIP, and in an overlay " +
				"the source VIP",
			Why:    "The proxy waits for it and serves no Service until then.",
			Remedy: "Install the network plugin, or name its network and address: --network-name, --source-vip."},
		{ID: "programs", Worst: Info, judge: (*judge).programs,
			Looks:  "iptables of both back ends, nft, ipset, conntrack and ipvsadm, and their versions",
			Why:    "Mode iptables runs iptables. The other programs are only for debugging.",
			Remedy: "Mode iptables: install the package iptables in the image."},
	}
}

func (j *judge) privileges() {
	lacks := j.facts.Lacks.Value
	m, _ := j.running()
	text := "this process lacks CAP_" + strings.Join(lacks, " and CAP_")
	switch {
	case slices.Contains(lacks, "NET_ADMIN"):
		j.wrong("", "%s", text)
	case len(lacks) > 0 && m.Among != "":
		j.wrong("", "%s, and mode %s writes rules with ipsets", text, m.Name)
	case len(lacks) > 0 && m.RunsIPTables:
		j.warn("", "%s, which mode %s needs if any rules use ipsets, and for the legacy back end", text, m.Name)
	case len(lacks) > 0:
		j.info("", "%s, which the mode that would run does not need", text)
	default:
		j.ok("", "this process has CAP_NET_ADMIN and CAP_NET_RAW")
	}
}

func (j *judge) namespace() {
	switch own := j.facts.OwnNamespace; {
	case own.Err != nil:
		j.info("", "cannot determine whether this is the network namespace of process 1: %v", own.Err)
	case own.Value:
		j.info("", "this is not the network namespace of process 1; the findings are about this one")
	default:
		j.ok("", "this is the network namespace of process 1")
	}
}

func (j *judge) kernel() {
	v := j.facts.Kernel.Value
	var major, minor int
	if _, err := fmt.Sscanf(v, "%d.%d", &major, &minor); err != nil {
		j.unknown("", fmt.Errorf("read the version %q: %w", v, err))
		return
	}
	if major < 5 || major == 5 && minor < 10 {
		j.wrong("", "Linux %s", v)
		return
	}
	j.ok("", "Linux %s", v)
}

// modes reports for each mode whether it can run. A failure is a warning only if the configuration
// selects the mode.
func (j *judge) modes() {
	for _, m := range j.Modes {
		switch {
		case !m.Here():
			j.info(m.Name, "is only for %s", m.OS)
		default:
			j.families(m)
		}
	}
}

func (j *judge) families(m mode.Mode) {
	for _, fam := range j.Families {
		a, ok := j.facts.ability(m.Name, fam)
		about := m.Name + " " + fam.String()
		sev := Info
		if j.Configured == m.Name {
			sev = Warning
		}
		switch {
		case !ok:
			j.unknown(about, errUntried)
		case len(a.Modules) > 0 && a.Loadable:
			j.info(about, "not tried, because the kernel would load modules: %s. They are on disk, so the proxy can "+
				"use them; --load-modules tries it",
				strings.Join(a.Modules, ", "))
		case len(a.Modules) > 0:
			f := j.add(Unknown, about, "not tried: %v, which are not on disk, as far as visible from here", a.Unasked)
			f.Remedy = "Mount the host's /lib/modules, or try it with --load-modules."
		case a.Unasked != nil:
			j.unknown(about, a.Unasked)
		case a.Able == nil && a.Reduced != nil:
			f := j.add(sev, about, "can run, but not all of it: %s", oneLine(a.Reduced))
			f.Why = "What is missing here is off."
		case a.Able == nil:
			j.ok(about, "can run")
		default:
			f := j.add(sev, about, "cannot run: %s", oneLine(a.Able))
			f.Why = j.kind.Why
			if errors.Is(a.Able, fs.ErrPermission) {
				f.Remedy = "Run the check as root."
			}
		}
	}
}

// oneLine joins the lines of an error.
func oneLine(err error) string { return strings.Join(strings.Split(err.Error(), "\n"), "; ") }

func (j *judge) asked() {
	asked := j.Configured
	if asked == "" {
		asked = "no mode (the default)"
	}
	c, err := choose(j.Setup, j.facts)
	switch {
	case errors.Is(err, errUntried):
		j.unknown("", fmt.Errorf("cannot determine which mode would run; the configuration selects %s: %s", asked,
			oneLine(err)))
	case err != nil:
		j.wrong("", "the configuration selects %s, and no mode can run: %s", asked, oneLine(err))
	case len(c.Steps) > 0 && j.Configured != "":
		j.warn("", "the configuration selects %s; %s", asked, c.Steps[len(c.Steps)-1])
	case len(c.Steps) > 0:
		j.info("", "the configuration selects %s: it is %s, after %s", asked, c.Mode.Name, tried(c.Steps))
	default:
		j.ok("", "the configuration selects %s: mode %s would run", asked, c.Mode.Name)
	}
	if err != nil {
		return
	}
	if c.Mode.Caution != "" {
		j.warn("", "mode %s: %s", c.Mode.Name, c.Mode.Caution)
	}
	for _, fam := range j.Families[1:] {
		if a, ok := j.facts.ability(c.Mode.Name, fam); ok && a.Able != nil {
			j.warn(fam.String(), "mode %s cannot serve %s: %s; %s would be served alone", c.Mode.Name, fam,
				oneLine(a.Able), j.Families[0])
		}
	}
}

func tried(steps []mode.Step) string {
	names := make([]string, len(steps))
	for i, s := range steps {
		names[i] = fmt.Sprintf("%s (%s)", s.From, oneLine(s.Why))
	}
	return strings.Join(names, ", ")
}

func (j *judge) waits() {
	m, _ := j.running()
	waits, ok := of(j, m.Name, j.facts.Waits)
	if !ok || m.Lacks == nil {
		return
	}
	for _, err := range waits {
		j.warn(m.Name, "%s", oneLine(err))
	}
	if len(waits) == 0 {
		j.ok(m.Name, "this node has everything the mode needs")
	}
}

func (j *judge) programs() {
	for _, p := range j.facts.Programs {
		switch {
		case p.Path == "":
			j.info(p.Name, "not installed here")
		case p.Err != nil:
			j.info(p.Name, "%s: %s", p.Path, oneLine(p.Err))
		case p.Version == "":
			j.ok(p.Name, "%s", p.Path)
		default:
			j.ok(p.Name, "%s: %s", p.Path, p.Version)
		}
	}
}

// running returns the mode that would run, if known.
func (j *judge) running() (mode.Mode, bool) {
	if j.Running != nil {
		return *j.Running, true
	}
	c, err := choose(j.Setup, j.facts)
	return c.Mode, err == nil
}

// serves reports whether a family is one of those to be served.
func (j *judge) serves(f lb.Family) bool { return slices.Contains(j.Families, f) }
