package planetest

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/scenario"
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

// report sums up the run and, if asked for, writes it down.
func (s *suite) report(t *testing.T) {
	count := map[string]int{}
	for _, r := range s.results.Cases {
		if r.Differs != "" {
			count["differs"]++
		}
		for _, v := range r.Families {
			count[v]++
		}
		count["sctp"] += r.SCTP
	}
	t.Logf("%s on kernel %s: %d scenarios; by family %d pass, %d fail, %d need SCTP; %d scenarios differ by intent; %d lines need SCTP: proven in the VM run",
		s.Mode, s.results.Kernel, len(s.results.Cases), count[Passes], count[Fails], count[NeedsSCTP], count["differs"], count["sctp"])
	if os.Getenv("PLANETEST_RECORD") == "" {
		return
	}
	dir, err := resultsDir()
	if err == nil && len(s.results.Cases) != s.all { // some were run: the others are as they were, or not known
		var known []Results
		if known, err = ReadResults(dir); err == nil {
			s.results.complete(known)
		}
	}
	if err == nil {
		err = s.results.Write(dir)
	}
	if err != nil {
		t.Error(err)
	}
}
