package config

import (
	"iter"
	"runtime"
	"slices"
	"strings"

	"kube-proxy/config/option"
	"kube-proxy/mode"
)

// entry is a flag, a field of the file, or both, as the table has it.
type entry struct {
	option.Field
	group string
	// modes are the only ones in which it has an effect; nil means all.
	modes []string
}

// onLinux and onWindows are effects on one operating system.
var (
	onLinux   = option.Effect{System: "linux"}
	onWindows = option.Effect{System: "windows"}
)

// Why a change needs a new process, where several fields share the reason.
const (
	client  = "the API client is created once"
	logFile = "the log is opened once"
)

// says returns the effect in words, for the documentation.
func (e *entry) says() string {
	switch {
	case e.Gone != "":
		return "accepted, without effect: " + e.Gone
	case e.System != "":
		return "only on " + systemName(e.System)
	case e.modes != nil:
		return "only in " + strings.Join(e.modes, ", ")
	}
	return ""
}

// counts reports whether it does anything in the mode that runs.
func (e *entry) counts(running string) bool {
	return e.Gone == "" && (e.System == "" || e.System == runtime.GOOS) &&
		(e.modes == nil || slices.Contains(e.modes, running))
}

// ignored reports whether the flag has no effect beside a file: the file has a field for it
// (FL-03), or for what it changes (FL-04).
func (e *entry) ignored() bool {
	return e.Path != "" && !e.Wins && e.Flag != "vmodule" ||
		slices.Contains([]string{"healthz-port", "metrics-port", "conntrack-max"}, e.Flag)
}

// systemName is how people write the name of an operating system.
func systemName(goos string) string { return strings.ToUpper(goos[:1]) + goos[1:] }

// table has all flags and fields.
type table []entry

// newTable puts the fields of all sections together.
func newTable(sections []option.Section, modes mode.List) table {
	var all table
	for _, s := range sections {
		for _, f := range s.Fields {
			e := entry{Field: f, group: s.Title}
			if f.Path != "" {
				e.modes = modes.Reading(f.Path)
			}
			all = append(all, e)
		}
	}
	for i, e := range all {
		if e.Path == "" || e.Row != "" {
			continue
		}
		if of, ok := all.field(e.Path); ok { // the flag of another section's field
			all[i].Effect, all[i].Help = of.Effect, of.Help
		}
	}
	return all
}

// fields are the entries of fields of the file.
func (t table) fields() iter.Seq[*entry] {
	return t.which(func(e *entry) bool { return e.Path != "" && e.Row != "" })
}

// flags are the entries of flags.
func (t table) flags() iter.Seq[*entry] { return t.which(func(e *entry) bool { return e.Flag != "" }) }

func (t table) which(is func(*entry) bool) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for i := range t {
			if is(&t[i]) && !yield(&t[i]) {
				return
			}
		}
	}
}

// field returns the entry of a path; a path below one, such as a gate's, has the entry of its
// parent.
func (t table) field(path string) (*entry, bool) {
	for e := range t.fields() {
		if e.Path == path || strings.HasPrefix(path, e.Path+".") {
			return e, true
		}
	}
	return &entry{}, false
}

// flagOf returns the flag of a field; "" without one.
func (t table) flagOf(path string) string {
	for e := range t.flags() {
		if path != "" && e.Path == path {
			return e.Flag
		}
	}
	return ""
}

// groups are the headings of the help text, in order.
func (t table) groups() (all []string) {
	for e := range t.flags() {
		if !slices.Contains(all, e.group) {
			all = append(all, e.group)
		}
	}
	return all
}
