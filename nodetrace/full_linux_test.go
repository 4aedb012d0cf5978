package nodetrace

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	ctwire "kube-proxy/internal/netlink/conntrack"
	"kube-proxy/lb"
	"kube-proxy/trace"
)

// TestConntrackFull fills the conntrack table of a node. With established connections, new ones are
// dropped. With connections that have no reply, the kernel evicts those (NT-11).
func TestConntrackFull(t *testing.T) {
	for _, c := range []struct {
		name   string
		status uint32
		want   trace.NodeVerdict // of the real packet
		says   string            // after the kernel dropped or evicted something
	}{
		{"established", ctwire.SeenReply | ctwire.Assured, trace.Dropped, "the conntrack table is full ("},
		{"without replies", 0, trace.Delivered, "Now the conntrack table is full ("},
	} {
		t.Run(c.name, func(t *testing.T) {
			lab := netlab.ForTest(t, netlab.Options{})
			lab.Serve(netlab.TCP, 8080, "pod2")
			// A rule with ct has the kernel track connections.
			if out, err := lab.Command(netlab.Node1, "nft", "table ip t { chain c { type filter hook forward "+
				"priority 0; ct state new accept; }; }").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			from, _ := netlab.HostByName("pod1")
			q := Question{Packet: trace.Packet{From: netip.AddrPortFrom(from.V4, 0), Proto: lb.TCP,
				To: netip.MustParseAddrPort("10.1.1.12:8080")}, OnNode: onNode1}
			for i, wants := range []struct {
				verdict trace.NodeVerdict
				says    string
			}{{trace.Undecided, "if it finds some"}, {c.want, c.says}} {
				lab.On(netlab.Node1, func() {
					most, _ := strconv.Atoi(sysctl("netfilter/nf_conntrack_max"))
					have, _ := strconv.Atoi(sysctl("netfilter/nf_conntrack_count"))
					fill(t, i*most, most-have, c.status)
					n, err := Follow(t.Context(), q, open{})
					if says := n.By + strings.Join(slices.Concat(n.Warnings, n.NotEvaluated), ""); err != nil ||
						n.Verdict != wants.verdict || !strings.Contains(says, wants.says) {
						t.Errorf("%s, %q (%v); want %s, %q", n.Verdict, says, err, wants.verdict, wants.says)
					}
				})
				if real, err := outcome(lab, "pod1", q.Packet.To, c.want); real != c.want {
					t.Errorf("the real packet is %s (%v), want %s", real, err, c.want)
				}
			}
		})
	}
}

// fill makes n conntrack entries in the namespace of the calling thread; first is the number of the
// first one.
func fill(t *testing.T, first, n int, status uint32) {
	t.Helper()
	to := netip.MustParseAddrPort("198.51.100.1:80")
	err := ctwire.Fill(t.Context(), n, func(k int) ctwire.Entry {
		i := first + k
		addr := netip.AddrFrom4([4]byte{192, byte(i >> 23), byte(i >> 15), byte(i >> 7)})
		client := netip.AddrPortFrom(addr, uint16(1024+i&127))
		return ctwire.Entry{Orig: ctwire.Tuple{From: client, To: to, Proto: unix.IPPROTO_UDP},
			Reply: ctwire.Tuple{From: to, To: client, Proto: unix.IPPROTO_UDP}, Status: status, Timeout: 600}
	})
	if err != nil {
		t.Fatal(err)
	}
}
