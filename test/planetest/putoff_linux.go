package planetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
)

// PutOff makes rules of another program, in a long chain before ours, delay each new connection of
// node1 to port 80 for about half a second. The function that it returns waits until the next such
// packet arrives: later changes happen while that packet has the kernel's list of chains, and
// before it reaches any of ours.
func PutOff(t testing.TB, lab *netlab.TestLab, fam lb.Family) (next func()) {
	t.Helper()
	steps, rules := 40_000, 1000
	if testing.Short() { // as in emulation, where each takes ten times as long
		steps = 4_000
	}
	family := nftFamily(fam)
	nft := func(text string, args ...string) string {
		t.Helper()
		c := lab.Command(netlab.Node1, "nft", args...)
		c.Stdin = strings.NewReader(text)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("nft %s: %v: %s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	nft(fmt.Sprintf("table %s others {\n counter begun { }\n chain short {\n%s }\n chain long {\n%s }\n"+
		" chain output { type nat hook output priority -101; tcp dport 80 counter name begun jump long; }\n}\n",
		family, strings.Repeat("meta mark 0x12345678 counter\n", rules), strings.Repeat("jump short\n", steps)), "-f",
		"-")
	seen := 0
	return func() {
		t.Helper()
		seen++
		want := fmt.Sprintf("packets %d ", seen)
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			counted := nft("", "list", "counter", family, "others", "begun")
			if strings.Contains(counted, want) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("no packet came: want %q in %s", want, counted)
			}
		}
	}
}
