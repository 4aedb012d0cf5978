//go:build linux

package iptables

import (
	"slices"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// DP-51: a new process reports the keys that the kernel served and that no Service has any more,
// whatever serves them: a list or a tree, cluster IPs, NodePorts and addresses with source ranges.
// It reports no other keys.
func TestDropped(t *testing.T) {
	eachKind(t, func(t *testing.T, w planetest.World, cfg Config) {
		for _, n := range []int{3, 80} {
			table := &lb.Table{Node: w.Node()}
			for i := range n {
				table.Replace(w.Full(i, 10*i, 2, i%2, 0))
			}
			reset(t, newPlane(t, cfg), table)
			var want []lb.Key
			for _, i := range []int{1, 2} {
				o, fronts := w.Full(i, 10*i, 2, i%2, 0)
				for _, f := range fronts {
					want = append(want, f.Key)
				}
				table.Replace(o, nil)
			}
			table.Replace(w.Full(0, 0, 0, 0, 0)) // its cluster IP stays, and refuses
			_, fronts := w.Full(0, 0, 2, 0, 0)
			for _, f := range fronts[1:] {
				want = append(want, f.Key)
			}
			p := newPlane(t, cfg)
			got := reset(t, p, table).Dropped
			slices.SortFunc(got, lb.Key.Compare)
			slices.SortFunc(want, lb.Key.Compare)
			if !slices.Equal(got, want) {
				t.Errorf("of %d Services: dropped\n%v, want\n%v", n, got, want)
			}
			if got := reset(t, p, table).Dropped; len(got) != 0 {
				t.Errorf("again: dropped %v", got)
			}
		}
	})
}

// Keys in the rules of upstream's proxy are reported too; an address that is no service address is
// not.
func TestServedBy(t *testing.T) {
	for _, c := range []struct{ chain, rule, want string }{
		{"KUBE-SERVICES", `-d 10.96.0.10/32 -p udp -m comment --comment "kube-system/kube-dns:dns cluster IP" -m udp ` +
			`--dport 53 -j KUBE-SVC-TCOU7JCQXEZGVUNU`, "10.96.0.10:53/udp"},
		{"KUBE-SERVICES", `-d fd00:96::a/128 -p sctp -m sctp --dport 9 -m comment --comment x -j ` +
			`KUBE-FW-TCOU7JCQXEZGVUNU`, "[fd00:96::a]:9/sctp"},
		{"KUBE-SVC-TO-0A60", `-d 10.96.0.1/32 -p tcp -m tcp --dport 443 -j KUBE-SVC-NPX46M4PTMTKRN6Y`,
			"10.96.0.1:443/tcp"},
		{"KUBE-NODEPORTS", `-p tcp -m comment --comment "a/b -j KUBE-SVC-X" -m tcp --dport 30080 -j ` +
			`KUBE-EXT-NPX46M4PTMTKRN6Y`, "nodeport:30080/tcp"},
		{"KUBE-NODEPORTS", `-d 127.0.0.0/8 -p tcp -m tcp --dport 30080 -j KUBE-EXT-NPX46M4PTMTKRN6Y`,
			"nodeport:30080/tcp"},
		{"KUBE-SERVICES", `-m comment --comment "last" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS`, ""},
		{"KUBE-SERVICES", `-d 10.96.0.0/16 -j KUBE-SVC-TO-0A60`, ""},
		{"KUBE-SVC-TO-0A60000A0", `-d 10.96.0.10/32 -p tcp -m tcp --dport 0:4095 -j KUBE-SVC-TO-0A60000A00`, ""},
		{"KUBE-SERVICES", `! -d 10.96.0.10/32 -p udp -m udp --dport 53 -j KUBE-SVC-TCOU7JCQXEZGVUNU`, ""},
		{"KUBE-SERVICES", `-d 10.96.0.10/32 -p udp -m udp --dport 53 -j ACCEPT`, ""},
	} {
		k, ok := servedBy(c.chain, c.rule)
		if got := k.String(); ok != (c.want != "") || ok && got != c.want {
			t.Errorf("%s %s: %s, %t, want %q", c.chain, c.rule, got, ok, c.want)
		}
	}
}
