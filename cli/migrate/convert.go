package migrate

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"kube-proxy/config"
	"kube-proxy/mode"
)

// Severity says whether an operator must act.
type Severity string

// The severities.
const (
	Same    Severity = "info"    // it differs, without a need to act
	Change  Severity = "change"  // clients or operators will see the difference
	Missing Severity = "missing" // something that works today will not, unless something is done
)

// Statement is one thing that will differ.
type Statement struct {
	Severity Severity `json:"severity"`
	// About is the flag, the field or the object.
	About string `json:"about"`
	// Differs describes the difference, Why the reason, and Do the action.
	Differs string `json:"differs"`
	Why     string `json:"why"`
	Do      string `json:"do"`
}

// Result is the converted configuration with its statements.
type Result struct {
	// From and To are the modes; "" is the best that the machine can do.
	From, To string
	// Config is the configuration, as YAML.
	Config []byte
	// Flags stay on the command line: they have no field.
	Flags      []string
	Statements []Statement
	// Distribution is what the cluster is, "" if that is unknown; Forth and Back are the commands
	// for it.
	Distribution string
	Forth, Back  []Step
}

// Convert lists the differences, and writes the configuration for a mode; "" keeps the mode.
func Convert(modes mode.List, p *Proxy, to string) (*Result, error) {
	if to != "" {
		if m, ok := modes.Find(to); !ok || !m.On("linux") {
			return nil,
				config.Problems{{Where: "--to", Value: to, Want: "want " +
					strings.Join(modes.Names(func(m mode.Mode) bool { return m.On("linux") }), ", ")}}
		}
	}
	c := converter{modes: modes, proxy: p}
	args, file := p.Args, p.File
	if p.Cilium != nil {
		var err error
		if file, err = c.cilium(p.Cilium); err != nil {
			return nil, err
		}
	}
	conv, err := config.Convert(modes, args, file, to)
	if err != nil {
		if ps, ok := err.(config.Problems); ok {
			return nil, ps.In(c.where(), cmp.Or(p.Where, c.where()))
		}
		from := strings.Join(slices.DeleteFunc([]string{p.Where, p.FileWhere}, func(s string) bool { return s == "" }),
			" with ")
		return nil, fmt.Errorf("%s: %w", cmp.Or(from, c.where()), err)
	}
	c.conv = conv
	c.loader()
	c.fields()
	c.between()
	c.pod()
	for _, s := range p.Said {
		c.add(s.Severity, s.About, s.Differs, s.Why, s.Do)
	}
	r := &Result{From: conv.From, To: conv.To, Config: conv.YAML, Flags: slices.Concat(c.stays, conv.Flags),
		Distribution: p.Place.Distribution}
	if r.Forth, r.Back, err = p.Place.Steps(); err != nil {
		c.add(Missing, p.Place.Distribution, err.Error(), "The vendor's documentation has no such setting.",
			"Use a distribution, or a network plugin, that lets you replace kube-proxy.")
	}
	r.Statements = c.all
	return r, nil
}

type converter struct {
	modes mode.List
	proxy *Proxy
	conv  *config.Conversion
	all   []Statement
	// stays are the flags of proxy.Filled that do something beside --config.
	stays []string
}

func (c *converter) add(sev Severity, about, differs, why, do string) {
	s := Statement{sev, about, differs, why, do}
	if !slices.Contains(c.all, s) {
		c.all = append(c.all, s)
	}
}

// where returns the input that a flag or a field is of.
func (c *converter) where() string {
	return cmp.Or(c.proxy.FileWhere, c.proxy.Where, "Cilium's ConfigMap")
}

// said has the sentences of the loader, each with its meaning for a migration.
var said = []struct {
	pattern *regexp.Regexp
	differs string
	why, do string // with $1 …
}{
	{regexp.MustCompile(`^(.+?) has no effect: (.+)$`), "it has no effect", "$2.",
		"Nothing: the new configuration omits it."},
	{regexp.MustCompile(`^(.+?) has no effect, (.+)$`), "it has no effect", "$2.", "Nothing: it is omitted."},
	{regexp.MustCompile(`^(.+?) is read as (.+)$`), "it is read as $2", "A later version renamed it.",
		"Nothing: the new configuration has the current name."},
	{regexp.MustCompile(`^(.+?) is ignored: (.+)$`), "it is ignored", "$2.", "Remove it."},
	{regexp.MustCompile(`^(ignored because --config is given): (.+)$`), "$2: ignored, because --config is given",
		"With a file, flags that set the same fields have no effect, as upstream.",
		"Remove them from the command line, or set the fields in the file."},
	{regexp.MustCompile(`^without effect in mode (\S+): (.+)$`), "$2: without effect in mode $1",
		"Only other modes read it, as upstream.", "Nothing: fields that the new mode does not read are omitted."},
	{regexp.MustCompile(`^(--feature-gates|KubeProxyConfiguration\.featureGates): these gates belong to other ` +
		`versions or to other programs and have no effect: (.+)$`), "$2: they have no effect",
		"These gates belong to other versions or to other programs.", "Nothing: the new configuration omits them."},
}

// twice is the error of strict decoding for a key that occurs twice in a mapping.
var twice = regexp.MustCompile(`line (\d+): key "([^"]+)" already set in map`)

// loader passes on the loader's messages about the old configuration.
func (c *converter) loader() {
	for _, w := range c.conv.Warnings {
		for _, m := range twice.FindAllStringSubmatch(w, -1) {
			c.add(Change, m[2],
				fmt.Sprintf("it occurs twice in %s, again in line %s: the last one applies, as upstream", c.where(),
					m[1]),
				"Such files only cause a warning.", "Check which one was intended.")
		}
		if strings.HasPrefix(w, "Using lenient decoding") || strings.Contains(w, "KubeProxyConfiguration and kind") {
			continue // the fields are reported one by one
		}
		about, differs, why, do := c.where(), w, "The configuration loader reports it.", "Check the flag or field."
		for _, s := range said {
			if m := s.pattern.FindStringSubmatchIndex(w); m != nil {
				expand := func(t string) string { return string(s.pattern.ExpandString(nil, t, w, m)) }
				differs, why, do = expand(s.differs), expand(s.why), s.do
				if name := expand("$1"); strings.HasPrefix(name, "--") || !strings.Contains(name, " ") &&
					!strings.HasPrefix(differs, "$") {
					about = name
				} else if name != "" && !strings.Contains(s.differs, "$") { // a flag with a value, or a field
					differs = name + strings.TrimPrefix(differs, "it")
				}
				if c.modeNamed(about) {
					about = "mode"
				}
				break
			}
		}
		c.add(Same, about, differs, why, do)
	}
	for _, u := range c.conv.Unknown {
		do := "Remove it."
		if u.Near != "" {
			do = "Remove it, or use " + u.Near + " if that was intended."
		}
		c.add(Change, u.Path, fmt.Sprintf("%s has the field %s, which no version has: it has no effect, as upstream",
			c.where(), u.Path),
			"Unknown fields only cause a warning.", do)
	}
}

func (c *converter) modeNamed(s string) bool { _, ok := c.modes.Find(s); return ok }

// fields reports fields that were left out or moved.
func (c *converter) fields() {
	for _, d := range c.conv.Dropped {
		c.add(Same, d.Path, "the new configuration omits it", "It would have no effect: "+d.Why+".", "Nothing.")
	}
	for _, m := range c.conv.Carried {
		if m.From == "" {
			c.add(Change, m.To, fmt.Sprintf("the new configuration sets %s, the default of mode %s", m.Value,
				c.fromMode()),
				fmt.Sprintf("Mode %s has another default: NodePorts would answer on other addresses.", c.toMode()),
				"Nothing, to keep the behaviour; remove the field for the new mode's default.")
			continue
		}
		c.add(Same, m.To, fmt.Sprintf("the new configuration sets %s, the value of %s", m.Value, m.From),
			fmt.Sprintf("Mode %s reads its own block.", c.toMode()), "Nothing.")
	}
	uses := config.FlagUses(c.modes)
	for _, f := range c.proxy.Filled {
		name, _, _ := strings.Cut(strings.TrimLeft(f, "-"), "=")
		switch {
		case !uses[normal(name)[2:]].IgnoredBesideFile:
			c.stays = append(c.stays, f)
			c.add(Same, f, "it stays on the command line", "It differs between nodes, or Kubernetes, a shell or "+
				"systemd fills it in.", "Keep it beside --config.")
		case c.proxy.File != nil:
			c.add(Same, f, "ignored, because --config is given", "With a file, flags that set the same fields have "+
				"no effect, as upstream.", "Remove it from the command line.")
		default:
			c.add(Missing, f, "the new configuration lacks its value, and with --config the flag has no effect",
				"Kubernetes, a shell or systemd fills it in, so the value is unknown here.", "Set the value in the "+
					"configuration; if it differs between nodes, use only the command line, without --config.")
		}
	}
	for _, f := range c.conv.Flags {
		c.add(Same, f, "it stays on the command line", "It has no configuration field.", "Keep it beside --config.")
	}
}

// usual returns the mode that a blank mode selects on a node that supports all modes.
func (c *converter) usual() string {
	return strings.Join(c.modes.Names(func(m mode.Mode) bool { return m.Unasked == "linux" })[:1], "")
}

func (c *converter) fromMode() string { return cmp.Or(c.conv.From, c.usual()) }
func (c *converter) toMode() string   { return cmp.Or(c.conv.To, c.usual()) }

// between reports how the modes differ.
func (c *converter) between() {
	from, to := c.fromMode(), c.toMode()
	if c.proxy.Cilium != nil {
		from = ciliumMode
	}
	for _, d := range differences {
		if d.applies(from, to) && (c.conv.Localhost || !d.localhost) &&
			(d.given == nil || slices.ContainsFunc(c.conv.Given,
				func(path string) bool { return slices.Contains(d.given, path) })) {
			c.add(d.sev, d.about, d.differs, d.why, d.do)
		}
	}
	m, ok := c.modes.Find(to)
	if !ok {
		return
	}
	if c.conv.To == "" {
		c.add(Same, "mode", "no mode is configured, so the node uses the first of these that it supports: "+
			strings.Join(c.modes.Names(func(m mode.Mode) bool {
				return m.Unasked == "linux"
			}), ", "),
			"Upstream uses iptables, and exits if that cannot run; a later version will use nftables.",
			"Configure a mode, so that all nodes have the same one: --to writes it.")
	}
	if m.FallsBackTo != "" {
		c.add(Same, "mode", fmt.Sprintf("if mode %s cannot run, %s runs instead, reported by log, event and metric", to,
			m.FallsBackTo), "Upstream exits.", "Watch kubeproxy_mode_info, or run kube-proxy check on the nodes.")
	}
}

// pod reports findings about the pod.
func (c *converter) pod() {
	p := c.proxy.Pod
	if p == nil {
		return
	}
	at := c.proxy.Where
	main := p.Containers[0]
	to, _ := c.modes.Find(c.toMode())
	if !p.HostNetwork {
		c.add(Missing, at+": hostNetwork", "the pod has no hostNetwork: the proxy would write rules in its own "+
			"network namespace", "The node's kernel serves Services.", "Set hostNetwork: true.")
	}
	if main.Image != "" {
		c.add(Change, at+": image", "it is "+main.Image, "This is another program.",
			"Replace the image. The program's path is /usr/local/bin/kube-proxy there too, so the command may stay.")
	}
	c.program(at, main)
	privileged := main.SecurityContext != nil && main.SecurityContext.Privileged != nil &&
		*main.SecurityContext.Privileged
	switch {
	case privileged:
		c.add(Same, at+": securityContext", "the container needs fewer privileges: NET_ADMIN (and NET_RAW in modes "+
			"iptables and ipvs) suffices after a privileged init container with --init-only",
			"Rules need NET_ADMIN; sysctls need a writable /proc/sys.",
			"Nothing, or use the chart, which does this.")
	case !main.may("NET_ADMIN"):
		c.add(Missing, at+": securityContext", "the container lacks the capability NET_ADMIN",
			"Writing rules needs it.", "Add NET_ADMIN, and NET_RAW for modes iptables and ipvs.")
	case to.Among != "" && !main.may("NET_RAW"):
		c.add(Missing, at+": securityContext", "the container lacks the capability NET_RAW",
			"The iptables programs need it for rules with ipsets, such as those of mode ipvs (docs/image.md).",
			"Add NET_RAW.")
	case to.RunsIPTables && !main.may("NET_RAW"):
		c.add(Change, at+": securityContext", "the container lacks the capability NET_RAW", "The iptables programs "+
			"need it if any rules use ipsets, as some pod networks do, and for the legacy back end (docs/image.md).",
			"Add NET_RAW.")
	}
	for _, capability := range podNeeds[to.Name].capabilities {
		if !privileged && !main.may(capability) {
			c.add(Missing, at+": securityContext", "the container lacks the capability "+capability,
				"Mode "+to.Name+" loads and attaches programs (docs/ebpf.md).", "Add "+capability+", or use the chart.")
		}
	}
	mounts := map[string]bool{}
	for _, m := range main.VolumeMounts {
		mounts[strings.TrimSuffix(m.MountPath, "/")] = true
	}
	for _, path := range podNeeds[to.Name].mounts {
		if !mounts[path] {
			c.add(Missing, at+": volumeMounts", path+" of the host is not mounted",
				"Programs and maps of mode "+to.Name+" outlive the process (docs/ebpf.md).",
				"Mount the host's "+path+", or use the chart.")
		}
	}
	if to.RunsIPTables && !mounts["/run/xtables.lock"] && !mounts["/run"] {
		c.add(Missing, at+": volumeMounts", "/run/xtables.lock of the host is not mounted",
			"Programs of iptables' legacy back end lock this file.",
			"Mount the host's /run/xtables.lock (hostPath, FileOrCreate).")
	}
	if !to.RunsIPTables && mounts["/run/xtables.lock"] {
		c.add(Same, at+": volumeMounts", "/run/xtables.lock is not needed",
			fmt.Sprintf("Mode %s runs iptables only to remove another mode's rules.", c.toMode()),
			"Nothing; remove it when all nodes have moved.")
	}
}

// program reports whether our image has the container's program: it has neither a shell nor
// wrappers.
func (c *converter) program(at string, main container) {
	words := slices.Concat(main.Command, main.Args)
	if len(words) == 0 || strings.HasPrefix(words[0], "-") { // the image's own program
		return
	}
	switch words[0] {
	case "kube-proxy", "/usr/local/bin/kube-proxy":
		return
	}
	var command []string
	for _, word := range slices.Concat([]string{"/usr/local/bin/kube-proxy",
		"--config=/var/lib/kube-proxy/config.conf"}, c.stays, c.conv.Flags) {
		command = append(command, fmt.Sprintf("%q", word))
	}
	c.add(Missing, at+": command", "it runs "+words[0]+", which our image does not have",
		"The image has no shell and no wrapper; the proxy writes its log to the standard error output.",
		fmt.Sprintf("Set command: [%s], without args, and mount the configuration there.", strings.Join(command, ",")))
}
