package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"kube-proxy/config/option"
	"kube-proxy/mode"
)

// flagsPage returns docs/flags.md.
func flagsPage(modes mode.List) string {
	o := NewOptions(modes)
	set := pflag.NewFlagSet("kube-proxy", pflag.ContinueOnError)
	o.AddFlags(set)
	var b strings.Builder
	b.WriteString("# Flags\n\n<!-- Made by `go test ./config -run TestPages -update`. Do not edit. -->\n\n" +
		"These flags have no field in the configuration file. [Its page](configuration.md) lists the others; with\n" +
		"`--config` those are ignored, except " + winning(o) + ".\n`_` and `-` are equal in flag names.\n")
	var idle []*entry
	for _, g := range o.table.groups() {
		head := fmt.Sprintf("\n## %s\n\n", g)
		for f := range o.table.flags() {
			if f.group != g || f.Path != "" {
				continue
			}
			if f.Gone != "" {
				idle = append(idle, f)
				continue
			}
			pf := set.Lookup(f.Flag)
			name := "`--" + f.Flag + "`"
			if f.Short != "" && f.Short != f.Flag {
				name += ", `-" + f.Short + "`"
			}
			fmt.Fprintf(&b, "%s- %s (%s): %s\n", head, name, joined(pf.Value.Type(), code(pf.DefValue)),
				about(f.asFlag(modes)))
			head = ""
		}
	}
	b.WriteString("\n## Without effect\n\nThese flags of older versions are accepted with a warning.\n\n")
	by := map[string][]string{}
	var reasons []string
	for _, f := range idle {
		if by[f.Gone] == nil {
			reasons = append(reasons, f.Gone)
		}
		by[f.Gone] = append(by[f.Gone], "`--"+f.Flag+"`")
	}
	for _, r := range reasons {
		fmt.Fprintf(&b, "- %s: %s\n", strings.Join(by[r], ", "), r)
	}
	return b.String()
}

// winning names the flags that override the fields of the file.
func winning(o *Options) string {
	var names []string
	for f := range o.table.flags() {
		if f.Path != "" && f.Wins {
			names = append(names, "`--"+f.Flag+"`")
		}
	}
	return strings.Join(names, ", ")
}

// configurationPage returns docs/configuration.md.
func configurationPage(modes mode.List) string {
	o := NewOptions(modes)
	var b strings.Builder
	b.WriteString("# The configuration file\n\n<!-- Made by `go test ./config -run TestPages -update`. Do not edit. " +
		"-->\n\n" +
		"A KubeProxyConfiguration of `kubeproxy.config.k8s.io/v1alpha1`, in YAML or JSON. Unknown and repeated " +
		"fields cause a\n" +
		"warning. Older field names are read, also those of `componentconfig/v1alpha1`. An absent field has its " +
		"default, and so\n" +
		"has a field with the value zero, unless its type distinguishes the two.\n\n" +
		"In parentheses: the flag, the type, the default. The running process applies changes. If a field marked\n" +
		"*restart* changes and the running mode uses it, the process exits, and must be started again. Upstream " +
		"lacks\n" +
		"fields marked *EXT*. [The specification](behaviour.md#configuration-file) has the rules of each field.\n")
	by := map[string][]*entry{}
	var where []string
	for f := range o.table.fields() {
		says := f.says()
		if f.Gone != "" {
			says = ""
		}
		if by[says] == nil {
			where = append(where, says)
		}
		by[says] = append(by[says], f)
	}
	for _, says := range where {
		fmt.Fprintf(&b, "\n## %s\n\n", cmp.Or(strings.Replace(says, "only", "Only", 1), "In all modes"))
		for _, f := range by[says] {
			v := o.file.at(f.Path)
			flag := ""
			if name := o.table.flagOf(f.Path); name != "" {
				flag = "`--" + name + "`"
			}
			value := strings.Trim(string(written(option.Leaf{Path: f.Path, Value: v})), `"`)
			fmt.Fprintf(&b, "- `%s` (%s): %s\n", f.Path, joined(flag, kindOf(v.Type()).name, code(value),
				choice(f.Restart == "", "", "*restart*"), choice(strings.HasPrefix(f.Row, "CF-"), "", "*EXT*")),
				plain(f.Help))
		}
	}
	b.WriteString("\n## Modes\n\nA blank mode is the first one marked *tried* that the host supports. " +
		"[Modes](modes.md) compares them.\n\n| mode | here | if unsupported | NodePorts at | on 127.0.0.1 |\n" +
		"|---|---|---|---|---|\n")
	for _, m := range modes {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", m.Name, here(m),
			cmp.Or(code(m.FallsBackTo), "error"), choice(m.NodePortsPrimary, "primary", "all"),
			choice(m.LocalhostNodePorts, "yes", choice(m.LocalhostGate != "", "`"+m.LocalhostGate+"`", "")))
	}
	b.WriteString("\n## Feature gates\n\nA misspelled gate is an error, and so is a change of a locked one. " +
		"Gates of other versions and\nof other programs cause a warning and have no effect. `AllAlpha` and `AllBeta` " +
		"are known too.\n\n")
	var fixed, locked, idleGates []string
	for _, g := range gates() {
		name := "`" + g.name + "`"
		switch does := does[g.name]; {
		case g.documentedOff():
			locked = append(locked, name)
		case does == "" && !g.locked:
			idleGates = append(idleGates, name)
		case does == "":
			fixed = append(fixed, name)
		default:
			fmt.Fprintf(&b, "- %s (%s, %t): %s\n", name, g.stage, g.on, does)
		}
	}
	fmt.Fprintf(&b, "\nWithout effect: %s.\n", strings.Join(idleGates, ", "))
	fmt.Fprintf(&b, "\nLocked and on, where false is accepted without effect: %s.\n", strings.Join(locked, ", "))
	fmt.Fprintf(&b, "\nLocked and on: %s.\n", strings.Join(fixed, ", "))
	return b.String()
}

// here returns the link to the mode's code.
func here(m mode.Mode) string {
	switch {
	case m.Unasked != "":
		return "tried, on " + systemName(m.Unasked)
	case !m.Here():
		return "on " + systemName(m.OS)
	}
	return ""
}

// joined returns the words that are not empty, with commas.
func joined(words ...string) string {
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), ", ")
}

func choice(is bool, yes, no string) string {
	if is {
		return yes
	}
	return no
}

// about is the help text of a flag or field, and where it applies.
func about(e *entry) string {
	text := plain(e.Help)
	if says := e.says(); says != "" && e.Gone == "" {
		text += ". *" + says + "*"
	}
	return text
}

// plain returns a help text for Markdown.
func plain(help string) string {
	return strings.ReplaceAll(strings.ReplaceAll(help, "`", ""), "|", "\\|")
}

func code(s string) string {
	switch s {
	case "", "null", "{}", "[]":
		return ""
	}
	return "`" + s + "`"
}
