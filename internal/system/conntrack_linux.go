package system

import (
	"errors"
	"io/fs"
	"math"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
)

// maxScaled limits the number of connections computed from the number of processors: a table for
// them takes 320 MB, and larger ones have met limits of the kernel. Upstream has the same limit
// since v1.36.
const maxScaled = 1 << 20

const (
	conntrackMax     = "net.netfilter.nf_conntrack_max"
	conntrackBuckets = "net.netfilter.nf_conntrack_buckets"
	// conntrackInitial exists in the initial network namespace only.
	conntrackInitial = "net.nf_conntrack_max"
)

// since returns the settings in c that differ from old.
func (c Conntrack) since(old Conntrack) Conntrack {
	for _, p := range []struct{ now, old *time.Duration }{
		{&c.TCPEstablished, &old.TCPEstablished}, {&c.TCPCloseWait, &old.TCPCloseWait}, {&c.UDP, &old.UDP},
		{&c.UDPStream, &old.UDPStream},
	} {
		if *p.now == *p.old {
			*p.now = 0
		}
	}
	if c.MaxPerCore == old.MaxPerCore && c.Min == old.Min {
		c.MaxPerCore = 0
	}
	c.TCPBeLiberal = c.TCPBeLiberal && !old.TCPBeLiberal
	return c
}

func (j *job) conntrack(c Conntrack) {
	if c.MaxPerCore <= 0 {
		c.MaxPerCore, c.Min = 0, 0
	}
	if c == (Conntrack{}) {
		return
	}
	if j.tree.Live() && !j.plans {
		if err := kernel.LoadConntrack(); err != nil {
			j.errs = append(j.errs, err)
			return
		}
	}
	if c.MaxPerCore > 0 {
		j.conntrackSize(c)
	}
	for _, t := range []struct {
		value time.Duration
		name  string
		asks  string
	}{
		{c.TCPEstablished, "tcp_timeout_established", "--conntrack-tcp-timeout-established " +
			"(conntrack.tcpEstablishedTimeout)"},
		{c.TCPCloseWait, "tcp_timeout_close_wait",
			"--conntrack-tcp-timeout-close-wait (conntrack.tcpCloseWaitTimeout)"},
		{c.UDP, "udp_timeout", "--conntrack-udp-timeout (conntrack.udpTimeout)"},
		{c.UDPStream, "udp_timeout_stream", "--conntrack-udp-timeout-stream (conntrack.udpStreamTimeout)"},
	} {
		if t.value <= 0 {
			continue
		}
		// If it cannot be set, a longer one suffices: conntrack then drops no connection too early.
		j.set(sysctl{name: "net.netfilter.nf_conntrack_" + t.name, value: strconv.FormatInt(seconds(t.value), 10),
			asks: t.asks + ", where 0 keeps the present value", more: true})
	}
	if c.TCPBeLiberal {
		j.set(sysctl{name: "net.netfilter.nf_conntrack_tcp_be_liberal", value: "1",
			asks: "--conntrack-tcp-be-liberal (conntrack.tcpBeLiberal), where false keeps the present value"})
	}
}

// seconds rounds up: a positive value must not become 0, with which the kernel would delete at
// once.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// conntrackSize raises the number of tracked connections, and makes the hash table large enough for
// them (PR-10). It never lowers an administrator's value.
func (j *job) conntrackSize(c Conntrack) {
	cpus, err := j.tree.OnlineCPUs()
	if err != nil {
		cpus = runtime.NumCPU()
		j.warn("", "Sizing the conntrack table for the %d CPUs that this process may use: %v", cpus, err)
	}
	size := maxScaled
	if c.MaxPerCore < maxScaled/cpus {
		size = c.MaxPerCore * cpus
	}
	asks := "--conntrack-max-per-core (conntrack.maxPerCore)"
	if c.Min > size {
		size, asks = c.Min, "--conntrack-min (conntrack.min)"
	}
	size = min(size, math.MaxInt32) // the kernel's own limit
	j.set(sysctl{name: conntrackMax, value: strconv.Itoa(size), keepMore: true,
		asks: asks + "; --conntrack-max-per-core 0 keeps the present value"})
	if !j.plans {
		j.hashSize(size / 4)
	}
}

// hashSize increases the hash table of connections to want buckets, if it has fewer. That only
// makes lookups faster, so no error here is fatal.
func (j *job) hashSize(want int) {
	have, err := j.tree.ModuleParameter("nf_conntrack", "hashsize")
	if err != nil { // for the machine's root alone; the sysctl is for all to read
		have, err = j.tree.Sysctl(conntrackBuckets)
	}
	if err == nil && atLeast(have, strconv.Itoa(want)) {
		return
	}
	if _, missing := j.tree.Sysctl(conntrackInitial); errors.Is(missing, fs.ErrNotExist) {
		j.report.Kept = append(j.report.Kept, "The conntrack hash table belongs to the initial network "+
			"namespace and keeps its size")
		return
	}
	if err == nil {
		err = j.tree.SetModuleParameter("nf_conntrack", "hashsize", strconv.Itoa(want))
	}
	switch {
	case err == nil:
		j.report.Wrote = append(j.report.Wrote, "Set the conntrack hash table from "+have+" to "+
			strconv.Itoa(want)+" buckets")
	case errors.Is(err, unix.EROFS):
		j.warn(ReadOnlySysFS, "Cannot enlarge the conntrack hash table from %s to %d buckets, because /sys is "+
			"read-only: mount /sys writable, or set /sys/module/nf_conntrack/parameters/hashsize on the host",
			have, want)
	default:
		j.warn("", "Cannot enlarge the conntrack hash table: %v", err)
	}
}
