package scenario

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/golden"
	"kube-proxy/test/tables"
)

var families = map[lb.Family]string{lb.IPv4: "table", lb.IPv6: "table6"}

// TestTables compares each state's tables with package policy's for the cluster. It also proves
// that a table reached by changes equals one made from nothing, that its text form can be parsed,
// and that every line of packets can be sent in some family.
func TestTables(t *testing.T) {
	dir, err := Dir()
	if err != nil {
		t.Fatal(err)
	}
	all, err := LoadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		t.Run(s.Name, func(t *testing.T) {
			got := map[string]string{} // by section
			targets := map[int]bool{}
			for f := range families {
				replay(t, s, f, got, targets)
			}
			for _, st := range s.States {
				for _, p := range st.Packets {
					if sends(p) && !targets[p.Line] {
						t.Errorf("%s.txtar:%d: %s: no family has an address for this target", s.Name, p.Line, p.Text)
					}
				}
			}
			file := filepath.Join(dir, s.Name+".txtar")
			if *golden.Update {
				rewrite(t, file, got)
				return
			}
			compare(t, s, got)
		})
	}
}

func replay(t *testing.T, s *Scenario, f lb.Family, got map[string]string, targets map[int]bool) {
	r := s.Replay(f)
	for {
		step, ok, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return
		}
		prefix := step.State.prefix()
		text := step.Table.String()
		got[prefix+families[f]] = text
		if len(step.Problems) > 0 {
			got[prefix+"problems"] = strings.Join(step.Problems, "\n") + "\n"
		}
		if len(step.Refused) > 0 {
			got[prefix+strings.Replace(families[f], "table", "refused", 1)] = strings.Join(step.Refused, "\n") + "\n"
		}
		if fresh := r.Fresh().String(); fresh != text {
			t.Errorf("%s: %v: changes lead to another table than a fresh start\n--- changes\n%s--- fresh\n%s", prefix,
				f, text, fresh)
		}
		parsed, err := tables.Parse(text)
		if err != nil {
			t.Errorf("%s: %v: the table cannot be read back: %v\n%s", prefix, f, err, text)
		} else if again := parsed.String(); again != text {
			t.Errorf("%s: %v: the table reads back as another\n--- was\n%s--- is\n%s", prefix, f, text, again)
		}
		for _, p := range step.State.Packets {
			if sends(p) {
				shots, err := r.Resolve(p, netlab.Addr)
				if err != nil {
					t.Errorf("%s.txtar:%d: %s: %v", s.Name, p.Line, p.Text, err)
				}
				targets[p.Line] = targets[p.Line] || len(shots) > 0 || err != nil
			}
		}
	}
}

// sends reports whether the line names a target.
func sends(p Packet) bool { return p.Verb == Send || p.Verb == Open || p.Verb == Begin }

// compare shows the differences between a file's golden sections and the expected ones.
func compare(t *testing.T, s *Scenario, got map[string]string) {
	for _, st := range s.States {
		want := map[string]string{"table": st.Tables[lb.IPv4], "table6": st.Tables[lb.IPv6], "problems": st.Problems,
			"refused": st.Refused[lb.IPv4], "refused6": st.Refused[lb.IPv6]}
		for _, part := range slices.Sorted(maps.Keys(want)) {
			if g := got[st.prefix()+part]; g != want[part] {
				t.Errorf("%s: section %q differs (if that is meant: go test ./test/scenario -update)\n%s",
					s.Name, st.prefix()+part, golden.Diff(want[part], g))
			}
		}
	}
}

// rewrite puts the golden sections into the file, each before the packets of its state.
func rewrite(t *testing.T, file string, got map[string]string) {
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	in := txtar.Parse(old)
	out := &txtar.Archive{Comment: in.Comment}
	golden := func(prefix string) {
		for _, part := range []string{"problems", "refused", "refused6", "table", "table6"} {
			if text := got[prefix+part]; text != "" {
				out.Files = append(out.Files, txtar.File{Name: prefix + part, Data: []byte(text)})
				delete(got, prefix+part)
			}
		}
	}
	last := ""
	for _, f := range in.Files {
		prefix, part := "", f.Name
		if at := strings.LastIndex(f.Name, "/"); at >= 0 {
			prefix, part = f.Name[:at+1], f.Name[at+1:]
		}
		if prefix != last {
			golden(last)
		}
		last = prefix
		switch part {
		case "table", "table6", "problems", "refused", "refused6":
			continue
		case "packets":
			golden(prefix)
		}
		out.Files = append(out.Files, f)
	}
	golden(last)
	if new := txtar.Format(out); string(new) != string(old) {
		if err := os.WriteFile(file, new, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
