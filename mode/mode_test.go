package mode

import (
	_ "embed"
	"errors"
	"strings"
	"testing"
)

// choices.tsv is the table of --proxy-mode in S0 to S4 and G7: what is asked for, what the Node's annotation says,
// what the host can do, and what then runs after which steps, or what the error says.
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
		got, err := Choose(asked, annotation, func(m string) error {
			times[m]++
			if strings.Contains(" "+able+" ", " "+m+" ") {
				return nil
			}
			return errors.New("no " + m + " here")
		})
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
		if got.Mode != run || strings.Join(took, " ") != steps || (says == "") != (said == "") || !strings.Contains(said, says) {
			t.Errorf("%s:\nmode %q, steps %q, said %q", line, got.Mode, took, said)
		}
		if (err != nil) != (run == "") || got.Asked != asked {
			t.Errorf("%s: error %v, %+v", line, err, got)
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

// The reason of a failure can be asked for by what it wraps.
func TestChooseWraps(t *testing.T) {
	_, err := Choose("userspace", "", func(string) error { return ErrNotBuilt })
	if !errors.Is(err, ErrNotBuilt) || !strings.Contains(err.Error(), "mode userspace: ") {
		t.Errorf("error %v", err)
	}
	_, err = Choose("ipvs", "", func(string) error { return ErrNotBuilt })
	if !errors.Is(err, ErrNotBuilt) {
		t.Errorf("error %v", err)
	}
}
