package scm

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A process that panics writes that to the file, the next one finds it, and of many crashes the
// last two stay.
func TestKeepCrashes(t *testing.T) {
	const asCrasher = "SCM_TEST_CRASH_IN"
	if dir := os.Getenv(asCrasher); dir != "" {
		crashed, err := KeepCrashes(filepath.Join(dir, "now.log"), filepath.Join(dir, "before.log"))
		if err != nil {
			os.Exit(90)
		}
		if crashed {
			os.Stdout.WriteString("crashed before\n")
		}
		if text := os.Getenv("SCM_TEST_PANIC"); text != "" {
			panic(text)
		}
		os.Exit(0)
	}
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range []struct {
		panics      string
		reported    bool // a report that the previous process has crashed
		now, before string
	}{
		{"", false, "", ""},
		{"one", false, "panic: one", ""},
		{"two", true, "panic: two", "panic: one"},
		{"", true, "", "panic: two"},
		{"", false, "", "panic: two"},
	} {
		c := exec.Command(self, "-test.run=^TestKeepCrashes$")
		c.Env = append(os.Environ(), asCrasher+"="+dir, "SCM_TEST_PANIC="+run.panics)
		out, _ := c.Output()
		if code := c.ProcessState.ExitCode(); (code == 0) != (run.panics == "") || code == 90 {
			t.Fatalf("%+v: exit code %d", run, code)
		}
		if reported := strings.Contains(string(out), "crashed before"); reported != run.reported {
			t.Errorf("%+v: reported %t", run, reported)
		}
		for name, want := range map[string]string{"now.log": run.now, "before.log": run.before} {
			text, _ := os.ReadFile(filepath.Join(dir, name)) // none before the first crash
			if !strings.HasPrefix(string(text), want) || want == "" && len(text) > 0 {
				t.Errorf("%+v: %s has %.40q", run, name, text)
			}
		}
	}
}
