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
		"`_` and `-` are equal in flag names. A flag that sets a field is described in [the configuration file](configuration.md).\n" +
		"With `--config` such a flag is ignored, unless it *beats the file*. A flag without effect is accepted with a warning.\n")
	for _, g := range o.table.groups() {
		fmt.Fprintf(&b, "\n## %s\n\n| flag | type | default | description |\n|---|---|---|---|\n", g)
		for f := range o.table.flags() {
			if f.group != g {
				continue
			}
			pf := set.Lookup(f.Flag)
			name := "`--" + f.Flag + "`"
			if f.Short != "" && f.Short != f.Flag {
				name += ", `-" + f.Short + "`"
			}
			text := about(f.asFlag(modes))
			if f.Path != "" {
				text = "sets " + code(f.Path)
			}
			if f.Wins {
				text += ". *beats the file*"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, pf.Value.Type(), code(pf.DefValue), text)
		}
	}
	return b.String()
}

// configurationPage returns docs/configuration.md.
func configurationPage(modes mode.List) string {
	o := NewOptions(modes)
	var b strings.Builder
	b.WriteString("# The configuration file\n\n<!-- Made by `go test ./config -run TestPages -update`. Do not edit. -->\n\n" +
		"A KubeProxyConfiguration of `kubeproxy.config.k8s.io/v1alpha1`, in YAML or JSON. Unknown and repeated fields cause a warning. Field names of\n" +
		"older versions are understood, those of `componentconfig/v1alpha1` too. An absent field has its default, and so has a zero, unless the field's\n" +
		"type distinguishes the two.\n\n" +
		"A change of a *live* field takes effect in the running process. A change of another field ends the process, which must be restarted, unless\n" +
		"the running mode does not use the field. The row is that of [the specification](behaviour.md); *EXT* fields are ours.\n\n" +
		"| field | type | default | row | change | flag | description |\n|---|---|---|---|---|---|---|\n")
	for f := range o.table.fields() {
		v := o.file.at(f.Path)
		change, flag := "live", ""
		if f.Restart != "" {
			change = "new process: " + f.Restart
		}
		if name := o.table.flagOf(f.Path); name != "" {
			flag = "`--" + name + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %s |\n", f.Path, kindOf(v.Type()).name, code(strings.Trim(string(written(option.Leaf{Path: f.Path, Value: v})), `"`)), f.Row, change, flag, about(f))
	}
	b.WriteString("\n## Modes\n\nA blank mode is the first one marked *tried* that the host supports.\n\n" +
		"| mode | mechanism | here | if unsupported | default NodePort addresses | on 127.0.0.1 |\n|---|---|---|---|---|---|\n")
	for _, m := range modes {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", m.Name, m.Doc, here(m), cmp.Or(code(m.FallsBackTo), "an error"),
			choice(m.NodePortsPrimary, "primary", "all"), choice(m.LocalhostNodePorts, "can", choice(m.LocalhostGate != "", "with the gate `"+m.LocalhostGate+"`", "")))
	}
	b.WriteString("\n## Feature gates\n\nAn unknown gate is an error, and so is a change of a locked one. `AllAlpha` and `AllBeta` are known too.\n\n" +
		"| gate | stage | default | locked | here |\n|---|---|---|---|---|\n")
	for _, g := range gates() {
		if !g.now {
			continue
		}
		locked := ""
		if g.locked {
			locked = "yes"
		}
		here := does[g.name]
		switch {
		case g.documentedOff():
			here = "false is accepted without effect: " + idle[g.name]
		case here == "" && !g.locked:
			here = "without effect: " + idle[g.name]
		}
		fmt.Fprintf(&b, "| `%s` | %s | %t | %s | %s |\n", g.name, g.stage, g.on, locked, here)
	}
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

// about is the text of a table's last column.
func about(e *entry) string {
	text := strings.ReplaceAll(strings.ReplaceAll(e.Help, "`", ""), "|", "\\|")
	if says := e.says(); says != "" && e.Gone == "" {
		text += ". *" + says + "*"
	}
	return text
}

func code(s string) string {
	switch s {
	case "", "null", "{}", "[]":
		return ""
	}
	return "`" + s + "`"
}
