package kernel

import (
	"errors"
	"io/fs"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

const (
	nftables = unix.NFNL_SUBSYS_NFTABLES << 8
	nobodys  = 0xf0 << 8 // no subsystem has this number
)

func named(attr uint16, name string) func(*netlink.Encoder) {
	return func(e *netlink.Encoder) { e.Str(attr, name) }
}

// The client stays in the network namespace in which it was opened, whichever thread uses it.
func TestNetfilterNamespace(t *testing.T) {
	n := openThere(t)
	before, err := n.Generation()
	if err != nil {
		t.Fatal(err)
	}
	makeChain(t, n, "a-table", "a-chain")
	if after, err := n.Generation(); after != before+1 || err != nil {
		t.Errorf("generation %d, then a transaction, then %d, %v", before, after, err)
	}
	if chains, err := n.Chains(unix.NFPROTO_IPV4); !slices.Equal(chains, []Chain{{"a-table", "a-chain"}}) ||
		err != nil {
		t.Errorf("chains: %v, %v", chains, err)
	}
	if chains, err := n.Chains(unix.NFPROTO_IPV6); len(chains) != 0 || err != nil {
		t.Errorf("chains of IPv6: %v, %v", chains, err)
	}
	here, err := OpenNetfilter()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	if chains, err := here.Chains(unix.NFPROTO_IPV4); slices.Contains(chains, Chain{"a-table", "a-chain"}) ||
		err != nil {
		t.Errorf("the chain is in this namespace too, %v", err)
	}
}

// A refusal by the kernel is an error with its number, except for a dump of a missing object.
func TestNetfilterRefusals(t *testing.T) {
	n := openThere(t)
	for _, c := range []struct {
		name  string
		typ   uint16
		flags uint16
		want  error
	}{
		{"a table that is not there", nftables | unix.NFT_MSG_GETTABLE, 0, unix.ENOENT},
		{"elements of a table that is not there", nftables | unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, nil},
		{"rules of a table that is not there", nftables | unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, nil},
		{"no subsystem", nobodys, 0, unix.EINVAL},
		{"a dump of no subsystem", nobodys, unix.NLM_F_DUMP, unix.EINVAL},
	} {
		// all have the table's name as the first
		bodies, err := n.Ask(c.typ, c.flags, unix.NFPROTO_IPV4, named(1, "nosuch"))
		if len(bodies) != 0 || !errors.Is(err, c.want) {
			t.Errorf("%s: %d answers, %v; want %v", c.name, len(bodies), err, c.want)
		}
	}
}

// Without CAP_NET_ADMIN there is a client, and each request is refused.
func TestNetfilterWithoutCapability(t *testing.T) {
	inNamespace(t, func() {
		dropAll := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		if err := unix.Capset(dropAll, &make([]unix.CapUserData, 2)[0]); err != nil {
			t.Errorf("drop all capabilities: %v", err)
			return
		}
		n, err := OpenNetfilter()
		if err != nil {
			t.Error(err)
			return
		}
		defer n.Close()
		if _, err := n.Generation(); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("generation: %v", err)
		}
		if _, err := n.Chains(unix.NFPROTO_IPV4); !errors.Is(err, unix.EPERM) {
			t.Errorf("chains: %v", err)
		}
	})
}

// One client serves many goroutines.
func TestNetfilterManyAsk(t *testing.T) {
	n := openThere(t)
	makeChain(t, n, "a-table", "a-chain")
	want, err := n.Generation()
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				if got, err := n.Generation(); got != want || err != nil {
					t.Errorf("generation %d, %v; want %d", got, err, want)
				}
				if chains, err := n.Chains(unix.NFPROTO_IPV4); len(chains) != 1 || err != nil {
					t.Errorf("chains: %v, %v", chains, err)
				}
			}
		})
	}
	all.Wait()
}

// openThere opens a client in a new network namespace; the caller is not in it.
func openThere(t testing.TB) (n *Netfilter) {
	t.Helper()
	inNamespace(t, func() {
		var err error
		n, err = OpenNetfilter()
		if err != nil {
			t.Error(err)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	t.Cleanup(func() { n.Close() })
	return n
}

// makeChain makes a table of IPv4 and a chain of it in one transaction.
func makeChain(t *testing.T, n *Netfilter, table, chain string) {
	t.Helper()
	var e netlink.Encoder
	add := func(typ, flags uint16, family byte, resource uint16, attrs ...func(*netlink.Encoder)) (seq uint32) {
		seq = n.conn.Next()
		at := e.Netfilter(typ, flags|unix.NLM_F_CREATE, family, seq, resource)
		for _, attr := range attrs {
			attr(&e)
		}
		e.EndMessage(at)
		return seq
	}
	add(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	add(nftables|unix.NFT_MSG_NEWTABLE, 0, unix.NFPROTO_IPV4, 0, named(unix.NFTA_TABLE_NAME, table))
	last := add(nftables|unix.NFT_MSG_NEWCHAIN, unix.NLM_F_ACK, unix.NFPROTO_IPV4, 0,
		named(unix.NFTA_CHAIN_TABLE, table), named(unix.NFTA_CHAIN_NAME, chain))
	add(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	if err := n.conn.Batch(t.Context(), [][]byte{e.B}, last); err != nil {
		t.Fatal(err)
	}
}
