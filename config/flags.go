package config

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"kube-proxy/internal/nearest"
	"kube-proxy/mode"
)

// AddFlags defines all flags in fs, and makes "_" and "-" the same there (G2). Parsing never fails
// for a bad value: [Options.Complete] reports it with all other problems.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	fs.SortFlags = false
	note := func(p Problem) { o.problems = append(o.problems, p) }
	for e := range o.table.flags() {
		at := reflect.ValueOf(e.At)
		if e.Path != "" {
			at = o.file.at(e.Path).Addr()
		}
		v := &value{kind: kindOf(at.Type().Elem()), entry: e, at: at.Elem(), note: note}
		pf := fs.VarPF(v, e.Flag, e.Short, e.Help)
		pf.NoOptDefVal = e.Alone
		if v.Type() == "bool" {
			pf.NoOptDefVal = "true"
		}
	}
	o.set = fs
}

// Usage writes the help text of all flags: by group, in our order.
func Usage(w io.Writer, modes mode.List) {
	o := NewOptions(modes)
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(all)
	for _, g := range o.table.groups() {
		some := pflag.NewFlagSet("", pflag.ContinueOnError)
		some.SortFlags = false
		for f := range o.table.flags() {
			if f.group == g {
				some.AddFlag(all.Lookup(f.Flag))
			}
		}
		fmt.Fprintf(w, "\n%s:\n%s", g, some.FlagUsagesWrapped(100))
	}
}

// Unparsed returns all problems of a command line that the parser rejected with an error, such as
// an unknown flag (FL-02): that error, and those of the rest.
func Unparsed(args []string, err error, modes mode.List) error {
	o := NewOptions(modes)
	fs := pflag.NewFlagSet("kube-proxy", pflag.ContinueOnError)
	fs.ParseErrorsAllowlist.UnknownFlags = true
	fs.Usage = func() {}
	o.AddFlags(fs)
	problems := FlagError(fs, err)
	if fs.Parse(args) != nil { // the fault prevents further parsing, like a flag without its value
		return append(problems, o.problems...)
	}
	for _, p := range unknown(fs, args) {
		if p != problems[0] {
			problems = append(problems, p)
		}
	}
	if _, more := o.Complete(fs.Args()); more != nil { // problems of flags, of the file, or both
		for line := range strings.SplitSeq(more.Error(), "\n") {
			problems = append(problems, Problem{Where: line})
		}
	}
	return problems.In(o.ConfigFile, "")
}

// FlagError converts an error of the flag parser to problems; for an unknown flag it suggests the
// nearest name.
func FlagError(fs *pflag.FlagSet, err error) Problems {
	where := err.Error()
	if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		where += suggestion(fs, unknown.GetSpecifiedName())
	}
	return Problems{{Where: where}}
}

// unknown returns a problem, in the parser's words, for each flag that fs does not have: the parser
// gives up at the first.
func unknown(fs *pflag.FlagSet, args []string) Problems {
	var all Problems
	for i := 0; i < len(args) && args[i] != "--"; i++ {
		name, long := strings.CutPrefix(args[i], "--")
		name, _, valued := strings.Cut(name, "=")
		switch f := fs.Lookup(name); {
		case !long || name == "help":
		case f == nil:
			all = append(all, Problem{Where: "unknown flag: --" + name + suggestion(fs, name)})
		case !valued && f.NoOptDefVal == "":
			i++ // skip its value
		}
	}
	return all
}

// suggestion returns the flag with the nearest name to an unknown one; "" if none is near.
func suggestion(fs *pflag.FlagSet, name string) string {
	var known []string
	fs.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, f.Name)
		}
	})
	return nearest.DidYouMean(name, slices.Values(known), "--")
}
