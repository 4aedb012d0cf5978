package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/debug/inspect"
)

// terminal returns both ends of a terminal: one to print to, and one with the output.
func terminal(t *testing.T) (on, shows *os.File) {
	t.Helper()
	shows, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shows.Close() })
	fd := int(shows.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if on, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { on.Close() })
	return on, shows
}

// evil is a name that would retitle a terminal, clear it, and look green.
const evil = "x\x1b]0;owned\x07\u009b2J\r\x1b[32mok"

// worst is a proxy with hostile names in all its fields.
var worst = inspect.Status{Node: "n1", Mode: "nftables", Reason: evil, Services: 1, Severity: inspect.Error,
	LastChange: &inspect.Change{Object: evil, What: evil}, Findings: []inspect.Finding{{
		Severity: inspect.Error, About: "writes", Text: evil, Next: "kube-proxy why " + evil,
	}}}

// Severities have colours on a terminal, not elsewhere, and not with NO_COLOR.
func TestColourOnTerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	for _, no := range []string{"", "1"} {
		t.Setenv("NO_COLOR", no)
		on, shows := terminal(t)
		statusText(on, &worst, time.Now())
		io.WriteString(on, inkFor(on).verdicts("DROPPED on this node\nbalance  shop/web\n")+"END")
		var got []byte
		for buf := make([]byte, 4096); !bytes.HasSuffix(got, []byte("END")); {
			n, err := shows.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, buf[:n]...)
		}
		for _, red := range []string{"\x1b[31merror  \x1b[0m", "\x1b[31mDROPPED\x1b[0m", "\x1b[32mbalance\x1b[0m"} {
			if has := strings.Contains(string(got), red); has != (no == "") {
				t.Errorf("NO_COLOR=%q: colour %q: %v:\n%q", no, red, has, got)
			}
		}
		if strings.Contains(string(got), "\x1b]") || strings.Contains(string(got), "\x1b[32mok") {
			t.Errorf("NO_COLOR=%q: a name reached the terminal: %q", no, got)
		}
	}
}

// Piped output has no colours, and no control characters from names.
func TestStatusLeavesTerminalAlone(t *testing.T) {
	var out bytes.Buffer
	statusText(&out, &worst, time.Now())
	brief := inspect.Brief{Service: "shop/" + evil, State: inspect.NoBackends, Severity: inspect.Warning, Why: evil}
	attentionText(&out, &inspect.Attention{Services: 9, More: 3, Groups: []inspect.Group{
		{Namespace: evil, State: inspect.NoBackends, Severity: inspect.Warning,
			Count: 6, First: []inspect.Brief{brief}}}})
	if strings.ContainsFunc(out.String(), func(r rune) bool { return r < ' ' && r != '\n' || r == 0x9b }) {
		t.Errorf("%q", out.String())
	}
	if !strings.Contains(out.String(), "and 5 more in namespace") ||
		!strings.Contains(out.String(), "and 3 Services in further namespaces") {
		t.Errorf("%s", out.String())
	}
}
