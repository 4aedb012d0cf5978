package mode_test

import (
	_ "embed"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"kube-proxy/config/option"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/all"
	"kube-proxy/plane/userspace"
)

// choices.tsv is the table of --proxy-mode in S0 to S4 and G7: the configured mode, the Node's
// annotation, the capabilities of the host, and the resulting mode with its steps, or the error.
//
//go:embed testdata/choices.tsv
var choices string

func TestChoose(t *testing.T) {
	rows := 0
	for line := range strings.Lines(choices) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		rows++
		f := strings.Split(line, "\t")
		if len(f) != 6 {
			t.Fatalf("%q has %d columns, want 6", line, len(f))
		}
		dash := func(s string) string { return strings.TrimPrefix(s, "-") }
		asked, annotation, able, run, steps, says := dash(f[0]), dash(f[1]), f[2], dash(f[3]), dash(f[4]), dash(f[5])
		times := map[string]int{}
		modes := all.Modes()
		for i, m := range modes {
			modes[i].Able = func(mode.Settings) error {
				times[m.Name]++
				if strings.Contains(" "+able+" ", " "+m.Name+" ") {
					return nil
				}
				return errors.New("no " + m.Name + " here")
			}
		}
		got, err := modes.Choose(asked, annotation, mode.Settings{Family: lb.IPv4})
		var took []string
		for _, s := range got.Steps {
			took = append(took, s.From+">"+s.To)
			if !strings.Contains(s.String(), "no "+s.From+" here") || !strings.Contains(s.String(), "using "+s.To) {
				t.Errorf("%s: step %q does not say why", line, s)
			}
		}
		said := got.Ignored
		if err != nil {
			said = err.Error()
		}
		if got.Mode.Name != run || strings.Join(took, " ") != steps || (says == "") != (said == "") ||
			!strings.Contains(said, says) {
			t.Errorf("%s:\nmode %q, steps %q, said %q", line, got.Mode.Name, took, said)
		}
		if (err != nil) != (run == "") || got.Configured != asked {
			t.Errorf("%s: error %v, asked %q", line, err, got.Configured)
		}
		for m, n := range times {
			if n != 1 {
				t.Errorf("%s: asked %d times whether %s can run", line, n, m)
			}
		}
	}
	if rows < 15 {
		t.Errorf("choices.tsv has %d rows", rows)
	}
}

// A configured mode that does not exist is an error: no other mode replaces it (CF-26).
func TestChooseAsked(t *testing.T) {
	modes := all.Modes()
	for i := range modes {
		modes[i].Able = func(s mode.Settings) error {
			if asked := option.Of(s.Blocks, new(string)); *asked == "mh" {
				return fmt.Errorf("scheduler mh: %w", mode.ErrAsked)
			}
			return nil
		}
	}
	c, err := modes.Choose("ipvs", "", mode.Settings{Family: lb.IPv4, Blocks: option.Blocks{new("mh")}})
	if !errors.Is(err, mode.ErrAsked) || !strings.HasPrefix(err.Error(), "mode ipvs: scheduler mh: ") ||
		c.Mode.Name != "" {
		t.Errorf("%q runs, %v", c.Mode.Name, err)
	}
}

// A blank mode never selects one of another operating system, and a configured mode must be one of
// this system.
func TestChooseOfThisSystem(t *testing.T) {
	able := func(mode.Settings) error { return nil }
	list := mode.List{
		{Name: "elsewhere", Selection: mode.Selection{OS: "plan9", Unasked: "plan9", FallsBackTo: "here", Able: able}},
		{Name: "here", Selection: mode.Selection{Unasked: runtime.GOOS, Able: able}},
	}
	c, err := list.Choose("", "", mode.Settings{Family: lb.IPv4})
	if err != nil || c.Mode.Name != "here" || len(c.Steps) > 0 {
		t.Errorf("blank: %s after %v, %v; want here, and no step", c.Mode.Name, c.Steps, err)
	}
	if c, err := list.Choose("elsewhere", "", mode.Settings{Family: lb.IPv4}); err == nil {
		t.Errorf("a mode of another system runs: %s", c.Mode.Name)
	}
}

// A mode with security implications replaces no other mode if the administrator forbids it;
// configured by name, by the flag or the Node's annotation, it runs (TN-51).
func TestChooseNotInPlaceOfAnotherTN51(t *testing.T) {
	modes := all.Modes()
	for i, m := range modes {
		modes[i].Able = func(mode.Settings) error {
			if m.Name != "userspace" {
				return errors.New("no packet filter")
			}
			return nil
		}
	}
	for _, c := range []struct {
		asked, annotation string
		bounded           bool
		runs              string
	}{
		{"", "", false, "userspace"}, {"iptables", "", false, "userspace"},
		{"", "", true, ""}, {"iptables", "", true, ""}, {"", "iptables", true, ""},
		{"userspace", "", true, "userspace"}, {"", "userspace", true, "userspace"},
	} {
		got, err := modes.Choose(c.asked, c.annotation, mode.Settings{Family: lb.IPv4,
			Blocks: option.Blocks{&userspace.Options{UserspaceFallback: new(!c.bounded)}}})
		if got.Mode.Name != c.runs {
			t.Errorf("%+v: %q runs, %v", c, got.Mode.Name, err)
		}
		if c.runs == "" && (err == nil || !strings.Contains(err.Error(), "--userspace-fallback") ||
			!strings.Contains(err.Error(), "no packet filter")) {
			t.Errorf("%+v: error %v", c, err)
		}
		if c.runs != "" && got.Mode.Caution == "" {
			t.Errorf("%+v: no caution", c)
		}
	}
}
