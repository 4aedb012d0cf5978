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

// Severity says whether somebody has to do something.
type Severity string

// The severities.
const (
	Same    Severity = "info"    // it differs, and nobody has to do anything
	Change  Severity = "change"  // clients or operators will see the difference
	Missing Severity = "missing" // something that works today will not, unless something is done
)

// Statement is one thing that will differ.
type Statement struct {
	Severity Severity `json:"severity"`
	// About is the flag, the field or the object.
	About string `json:"about"`
	// Differs says what will differ, Why, and Do what to do.
	Differs string `json:"differs"`
	Why     string `json:"why"`
	Do      string `json:"do"`
}

// Result is what becomes of a proxy.
type Result struct {
	// From and To are the modes; "" is the best that the machine can do.
	From, To string
	// Config is the configuration, as YAML.
	Config []byte
	// Flags stay on the command line: no field stands for them.
	Flags      []string
	Statements []Statement
}

// Convert says what will differ, and writes the configuration for a mode; "" keeps the mode.
func Convert(modes mode.List, p *Proxy, to string) (*Result, error) {
	if to != "" {
		if m, ok := modes.Find(to); !ok || !m.On("linux") {
			return nil, config.Problems{{Where: "--to", Value: to, Want: "want " + strings.Join(modes.Names(func(m mode.Mode) bool { return m.On("linux") }), ", ")}}
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
		from := strings.Join(slices.DeleteFunc([]string{p.Where, p.FileWhere}, func(s string) bool { return s == "" }), " with ")
		return nil, fmt.Errorf("%s: %w", cmp.Or(from, c.where()), err)
	}
	c.conv = conv
	c.loader()
	c.fields()
	c.between()
	c.pod()
	for _, o := range p.Passed {
		c.add(Same, o, "it was passed over", "It says nothing of how the proxy is started.", "Nothing.")
	}
	return &Result{From: conv.From, To: conv.To, Config: conv.YAML, Flags: slices.Concat(c.stays, conv.Flags), Statements: c.all}, nil
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

// said are the sentences of the loader, each with what they mean for who moves.
var said = []struct {
	pattern *regexp.Regexp
	differs string
	why, do string // with $1 …
}{
	{regexp.MustCompile(`^(.+?) has no effect: (.+)$`), "it has no effect", "$2.", "Nothing: it is left out of the configuration."},
	{regexp.MustCompile(`^(.+?) has no effect, (.+)$`), "it has no effect", "$2.", "Nothing: it is left out."},
	{regexp.MustCompile(`^(.+?) is read as (.+)$`), "it is read as $2", "It is called so since a later version.", "Nothing: the configuration has the name of today."},
	{regexp.MustCompile(`^(.+?) is ignored: (.+)$`), "it is ignored", "$2.", "Take it out."},
	{regexp.MustCompile(`^(ignored because --config is given): (.+)$`), "$2: ignored, because --config is given", "With a file, flags that stand for a field of it do nothing, here as upstream.", "Take them out of the command line, or put the fields into the file."},
	{regexp.MustCompile(`^without effect in mode (\S+): (.+)$`), "$2: without effect in mode $1", "Only other modes read it, here as upstream.", "Nothing: what the new mode does not read is left out."},
	{regexp.MustCompile(`^(--feature-gates|KubeProxyConfiguration\.featureGates): these gates belong to older versions or to other programs and have no effect: (.+)$`), "$2: they have no effect",
		"The gates are of earlier versions, or of other programs.", "Nothing: they are left out of the configuration."},
}

// twice is what strict decoding says of a key that a mapping has already.
var twice = regexp.MustCompile(`line (\d+): key "([^"]+)" already set in map`)

// loader passes on what the loader says of the old configuration.
func (c *converter) loader() {
	for _, w := range c.conv.Warnings {
		for _, m := range twice.FindAllStringSubmatch(w, -1) {
			c.add(Change, m[2], fmt.Sprintf("it stands twice in %s, in line %s again: the last one holds, here as upstream", c.where(), m[1]),
				"Files are read with a warning about that, so nobody noticed.", "See which one was meant.")
		}
		if strings.HasPrefix(w, "Using lenient decoding") || strings.Contains(w, "KubeProxyConfiguration and kind") {
			continue // the fields are told of one by one
		}
		about, differs, why, do := c.where(), w, "The loader of the configuration says so.", "See the flag or field that it names."
		for _, s := range said {
			if m := s.pattern.FindStringSubmatchIndex(w); m != nil {
				expand := func(t string) string { return string(s.pattern.ExpandString(nil, t, w, m)) }
				differs, why, do = expand(s.differs), expand(s.why), s.do
				if name := expand("$1"); strings.HasPrefix(name, "--") || !strings.Contains(name, " ") && !strings.HasPrefix(differs, "$") {
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
		do := "Take it out."
		if u.Near != "" {
			do = "Take it out, or write " + u.Near + ", which may have been meant."
		}
		c.add(Change, u.Path, fmt.Sprintf("%s has the field %s, which does not exist in any version: it has no effect, here as upstream", c.where(), u.Path),
			"Files are read with a warning about what is unknown, so nobody noticed.", do)
	}
}

func (c *converter) modeNamed(s string) bool { _, ok := c.modes.Find(s); return ok }

// fields tells of fields that were left out or moved.
func (c *converter) fields() {
	for _, d := range c.conv.Dropped {
		c.add(Same, d.Path, "the configuration does not have it", "It would do nothing: "+d.Why+".", "Nothing.")
	}
	for _, m := range c.conv.Carried {
		if m.From == "" {
			c.add(Change, m.To, fmt.Sprintf("the configuration says %s, as in mode %s where nobody says anything", m.Value, c.fromMode()),
				fmt.Sprintf("Mode %s has another default: NodePorts would answer on other addresses than now.", c.toMode()),
				"Nothing, to keep what clients see; take the field out for the mode's own default.")
			continue
		}
		c.add(Same, m.To, fmt.Sprintf("the configuration has %s, the value of %s", m.Value, m.From), fmt.Sprintf("Mode %s reads its own block.", c.toMode()), "Nothing.")
	}
	for _, f := range c.proxy.Filled {
		name, _, _ := strings.Cut(strings.TrimLeft(f, "-"), "=")
		switch {
		case !config.IgnoredBesideFile(c.modes, name):
			c.stays = append(c.stays, f)
			c.add(Same, f, "it stays on the command line", "It is of one node each, or Kubernetes, a shell or systemd fills it in.", "Keep it beside --config.")
		case c.proxy.File != nil:
			c.add(Same, f, "ignored, because --config is given", "With a file, flags that stand for a field of it do nothing, here as upstream.", "Take it out of the command line.")
		default:
			c.add(Missing, f, "its value is not in the configuration, and beside --config the flag does nothing",
				"Kubernetes, a shell or systemd fills it in, so the value is not known here.", "Write the value into the configuration; where nodes differ in it, keep to the command line, without --config.")
		}
	}
	for _, f := range c.conv.Flags {
		c.add(Same, f, "it stays on the command line", "No field of the configuration stands for it.", "Keep it beside --config.")
	}
}

// usual is what a blank mode means on a node with all abilities.
func (c *converter) usual() string {
	return strings.Join(c.modes.Names(func(m mode.Mode) bool { return m.Unasked == "linux" })[:1], "")
}

func (c *converter) fromMode() string { return cmp.Or(c.conv.From, c.usual()) }
func (c *converter) toMode() string   { return cmp.Or(c.conv.To, c.usual()) }

// between tells how the modes differ.
func (c *converter) between() {
	from, to := c.fromMode(), c.toMode()
	if c.proxy.Cilium != nil {
		from = ciliumMode
	}
	for _, d := range differences {
		if d.applies(from, to) && (d.given == nil || slices.ContainsFunc(c.conv.Given, func(path string) bool { return slices.Contains(d.given, path) })) {
			c.add(d.sev, d.about, d.differs, d.why, d.do)
		}
	}
	m, ok := c.modes.Find(to)
	if !ok {
		return
	}
	if c.conv.To == "" {
		c.add(Same, "mode", "no mode is asked for, which is the best that the node can do: "+strings.Join(c.modes.Names(func(m mode.Mode) bool { return m.Unasked == "linux" }), ", ")+", in this order",
			"Upstream takes iptables, and ends where that cannot run; a later version will take nftables.", "Ask for a mode, so that all nodes have the same: --to writes it.")
	}
	if m.FallsBackTo != "" {
		c.add(Same, "mode", fmt.Sprintf("where mode %s cannot run, %s runs instead, and log, event and metric say so", to, m.FallsBackTo), "Upstream ends.", "Watch kubeproxy_mode_info, or run kube-proxy check on the nodes.")
	}
}

// pod tells what there is to say of the pod.
func (c *converter) pod() {
	p := c.proxy.Pod
	if p == nil {
		return
	}
	at := c.proxy.Where
	main := p.Containers[0]
	to, _ := c.modes.Find(c.toMode())
	if !p.HostNetwork {
		c.add(Missing, at+": hostNetwork", "the pod has no hostNetwork: the proxy would write rules into its own network namespace", "Services are served by the node's kernel.", "Set hostNetwork: true.")
	}
	if main.Image != "" {
		c.add(Change, at+": image", "it is "+main.Image, "This is another program.", "Put our image in its place; the path of the program is /usr/local/bin/kube-proxy there too, so the command may stay as it is.")
	}
	c.program(at, main)
	privileged := main.SecurityContext != nil && main.SecurityContext.Privileged != nil && *main.SecurityContext.Privileged
	switch {
	case privileged:
		c.add(Same, at+": securityContext", "the container may do less than privileged: NET_ADMIN (and NET_RAW in modes iptables and ipvs) is enough after a privileged init container with --init-only", "Rules need NET_ADMIN; sysctls need a writable /proc/sys.",
			"Nothing, or use the chart, whose containers are made so.")
	case !main.may("NET_ADMIN"):
		c.add(Missing, at+": securityContext", "the container has not the capability NET_ADMIN", "No rule can be written without.", "Add NET_ADMIN, and NET_RAW for modes iptables and ipvs.")
	case to.Among != "" && !main.may("NET_RAW"):
		c.add(Missing, at+": securityContext", "the container has not the capability NET_RAW", "The programs of iptables need it for rules that name ipsets, as those of mode ipvs do (docs/image.md).", "Add NET_RAW.")
	case to.RunsIPTables && !main.may("NET_RAW"):
		c.add(Change, at+": securityContext", "the container has not the capability NET_RAW", "The programs of iptables need it where anybody's rules name ipsets, as some networks for pods have them, and for the legacy back end (docs/image.md).", "Add NET_RAW.")
	}
	mounts := map[string]bool{}
	for _, m := range main.VolumeMounts {
		mounts[strings.TrimSuffix(m.MountPath, "/")] = true
	}
	if to.RunsIPTables && !mounts["/run/xtables.lock"] && !mounts["/run"] {
		c.add(Missing, at+": volumeMounts", "/run/xtables.lock of the host is not mounted", "Programs that write rules of iptables' legacy back end take turns by this file.", "Mount the host's /run/xtables.lock (hostPath, FileOrCreate).")
	}
	if !to.RunsIPTables && mounts["/run/xtables.lock"] {
		c.add(Same, at+": volumeMounts", "/run/xtables.lock is not needed", fmt.Sprintf("Mode %s does not run iptables, but to remove what another mode left.", c.toMode()), "Nothing; take it out when all nodes have moved.")
	}
}

// program says whether our image has what the container runs: it has neither a shell nor wrappers.
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
	for _, word := range slices.Concat([]string{"/usr/local/bin/kube-proxy", "--config=/var/lib/kube-proxy/config.conf"}, c.stays, c.conv.Flags) {
		command = append(command, fmt.Sprintf("%q", word))
	}
	c.add(Missing, at+": command", "it runs "+words[0]+", which our image does not have", "The image has no shell and no wrapper; the proxy writes its log to the standard error output.",
		fmt.Sprintf("Set command: [%s], without args, and mount the configuration there.", strings.Join(command, ",")))
}
