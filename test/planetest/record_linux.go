package planetest

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/test/scenario"
)

// kernel returns the kernel's version, "6.12".
func kernel(t *testing.T) string {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatalf("ask for the kernel's version: %v", err)
	}
	parts := strings.SplitN(unix.ByteSliceToString(u.Release[:]), ".", 3)
	if len(parts) < 2 {
		t.Fatalf("kernel version %q", unix.ByteSliceToString(u.Release[:]))
	}
	return parts[0] + "." + parts[1]
}

func (s *suite) record(sc *scenario.Scenario, r Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.results.Cases == nil {
		s.results.Cases = map[string]Result{}
	}
	s.results.Cases[sc.Name] = r
}

// report sums up the run and writes it down if PLANETEST_RECORD has the commit that it is of.
func (s *suite) report(t *testing.T) {
	count := map[string]int{}
	for _, r := range s.results.Cases {
		if r.Differs != "" {
			count["differs"]++
		}
		if len(r.Modelled) > 0 {
			count["modelled"]++
		}
		for _, v := range r.Families {
			count[v]++
		}
		count["sctp"] += r.SCTP
	}
	if s.Model != nil {
		t.Logf("%s on a %s: %d scenarios; by family %d pass, %d fail; some lines of %d scenarios differ by intent",
			s.Mode, s.results.Kernel, len(s.results.Cases), count[Passes], count[Fails], count["modelled"])
	} else {
		t.Logf("%s on kernel %s: %d scenarios; by family %d pass, %d fail, %d need SCTP; %d scenarios differ by "+
			"intent; %d lines need SCTP: proven in the VM run",
			s.Mode, s.results.Kernel, len(s.results.Cases), count[Passes], count[Fails], count[NeedsSCTP],
			count["differs"], count["sctp"])
	}
	commit := os.Getenv("PLANETEST_RECORD")
	if commit == "" || s.Variant {
		return
	}
	dir, err := resultsDir()
	var known []Results
	if err == nil {
		known, err = ReadResults(dir)
	}
	if err == nil {
		now := Seen{Date: time.Now().UTC().Format(time.DateOnly), Commit: commit}
		s.results.merge(known, now, len(s.results.Cases) == s.all)
		err = s.results.Write(dir)
	}
	if err != nil {
		t.Error(err)
	}
}
