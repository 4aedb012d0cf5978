package netlab

import (
	"fmt"
	"os"
	"strings"
)

// Overflows returns how many packets this machine has dropped since its start because the queue of
// a CPU was full (the second column of /proc/net/softnet_stat). All links of all namespaces share
// these queues, loopback and veth included, so a test that counts datagrams may have lost that many
// to other programs.
func Overflows(t TB) (n uint64) {
	t.Helper()
	data, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var processed, dropped uint64
		if _, err := fmt.Sscanf(line, "%x %x", &processed, &dropped); err != nil {
			t.Fatal("/proc/net/softnet_stat:", err)
		}
		n += dropped
	}
	return n
}
