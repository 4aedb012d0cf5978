package netlab

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Overflows returns how many packets this machine has dropped since its start because the queue of
// a CPU was full (the second column of /proc/net/softnet_stat). All links of all namespaces share
// these queues, loopback and veth included, so a test that counts datagrams may have lost that many
// to other programs.
func Overflows() (uint64, error) {
	data, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		return 0, fmt.Errorf("netlab: %w", err)
	}
	var n uint64
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			return 0, fmt.Errorf("netlab: /proc/net/softnet_stat: no second column in %q", line)
		}
		k, err := strconv.ParseUint(fields[1], 16, 32)
		if err != nil {
			return 0, fmt.Errorf("netlab: /proc/net/softnet_stat: %w", err)
		}
		n += k
	}
	return n, nil
}

// Overflows is the function of that name. An error ends the test.
func (l *TestLab) Overflows() uint64 {
	l.t.Helper()
	n, err := Overflows()
	if err != nil {
		l.t.Fatal(err)
	}
	return n
}
