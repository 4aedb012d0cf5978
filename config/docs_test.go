package config

import (
	"cmp"
	"fmt"
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
		"These flags set no field. [The configuration file](configuration.md) lists the others with their fields; with `--config`\n" +
		"they are ignored, except " + winning(o) + ".\n`_` and `-` are equal in flag names.\n")
	var idle []*entry
	for _, g := range o.table.groups() {
		head := fmt.Sprintf("\n## %s\n\n| flag | type | default | description |\n|---|---|---|---|\n", g)
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
			fmt.Fprintf(&b, "%s| %s | %s | %s | %s |\n", head, name, pf.Value.Type(), code(pf.DefValue), about(f.asFlag(modes)))
			head = ""
		}
	}
	b.WriteString("\n## Without effect\n\nThese flags of older versions are accepted with a warning.\n\n| reason | flags |\n|---|---|\n")
	by := map[string][]string{}
	var reasons []string
	for _, f := range idle {
		if by[f.Gone] == nil {
			reasons = append(reasons, f.Gone)
		}
		by[f.Gone] = append(by[f.Gone], "`--"+f.Flag+"`")
	}
	for _, r := range reasons {
		fmt.Fprintf(&b, "| %s | %s |\n", r, strings.Join(by[r], ", "))
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
	b.WriteString("# The configuration file\n\n<!-- Made by `go test ./config -run TestPages -update`. Do not edit. -->\n\n" +
		"A KubeProxyConfiguration of `kubeproxy.config.k8s.io/v1alpha1`, in YAML or JSON. Unknown and repeated fields cause a\n" +
		"warning. Older field names are read, also those of `componentconfig/v1alpha1`. An absent field has its default, and so\n" +
		"has a zero, unless the field's type distinguishes the two.\n\n" +
		"A change of a *live* field takes effect in the running process. Another change ends the process, which must be\n" +
		"restarted, unless the running mode does not use the field.\n" +
		"The row is that of [the specification](behaviour.md); *EXT* fields are ours.\n")
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
		fmt.Fprintf(&b, "\n## %s\n\n| field | type | default | row | change | flag | description |\n|---|---|---|---|---|---|---|\n",
			cmp.Or(strings.Replace(says, "only", "Only", 1), "In all modes"))
		for _, f := range by[says] {
			v := o.file.at(f.Path)
			flag := ""
			if name := o.table.flagOf(f.Path); name != "" {
				flag = "`--" + name + "`"
			}
			value := strings.Trim(string(written(option.Leaf{Path: f.Path, Value: v})), `"`)
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %s |\n",
				f.Path, kindOf(v.Type()).name, code(value), f.Row, choice(f.Restart == "", "live", "restart"), flag, plain(f.Help))
		}
	}
	b.WriteString("\n## Modes\n\nA blank mode is the first one marked *tried* that the host supports.\n\n" +
		"| mode | mechanism | here | if unsupported | default NodePort addresses | on 127.0.0.1 |\n|---|---|---|---|---|---|\n")
	for _, m := range modes {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", m.Name, m.Doc, here(m), cmp.Or(code(m.FallsBackTo), "an error"),
			choice(m.NodePortsPrimary, "primary", "all"), choice(m.LocalhostNodePorts, "can", choice(m.LocalhostGate != "", "with the gate `"+m.LocalhostGate+"`", "")))
	}
	b.WriteString("\n## Feature gates\n\nAn unknown gate is an error, and so is a change of a locked one. `AllAlpha` and `AllBeta` are known too.\n\n" +
		"| gate | stage | default | locked | here |\n|---|---|---|---|---|\n")
	var fixed []string
	for _, g := range gates() {
		if !g.now {
			continue
		}
		here := does[g.name]
		switch {
		case g.documentedOff():
			here = "false is accepted without effect: " + idle[g.name]
		case here == "" && !g.locked:
			here = "without effect: " + idle[g.name]
		case here == "":
			fixed = append(fixed, "`"+g.name+"`")
			continue
		}
		fmt.Fprintf(&b, "| `%s` | %s | %t | %s | %s |\n", g.name, g.stage, g.on, choice(g.locked, "yes", ""), here)
	}
	fmt.Fprintf(&b, "\nLocked and on: %s.\n", strings.Join(fixed, ", "))
	b.WriteString("\nGates of older versions and of other programs ([list](../config/gates.txt)) are accepted with a warning and have no effect.\n")
	return b.String()
}

// here says where the mode is.
func here(m mode.Mode) string {
	switch {
	case m.Unasked != "":
		return "tried, on " + systemName(m.Unasked)
	case !m.Here():
		return "on " + systemName(m.OS)
	}
	return ""
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

// plain returns a help text for a cell of a table.
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
