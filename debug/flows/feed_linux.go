package flows

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink"
	ctwire "kube-proxy/internal/netlink/conntrack"
	rtnl "kube-proxy/internal/netlink/route"
)

// room is for unread messages, in bytes: some 6,000 of them.
const room = 4 << 20

// kernelFeed receives the events of the kernel's conntrack table.
type kernelFeed struct {
	events *nlconn.Conn
	routes *nlconn.Conn
}

// openFeed starts to receive events, in the network namespace of the calling thread.
func openFeed() (feed, error) {
	f, err := openKernel()
	if err != nil {
		return nil, fmt.Errorf("listen to new connections: %w", err)
	}
	return f, nil
}

func openKernel() (*kernelFeed, error) {
	if err := tellsEvents(); err != nil {
		return nil, err
	}
	ask, err := nlconn.Open(nlconn.Config{Protocol: unix.NETLINK_NETFILTER})
	if err != nil {
		return nil, err
	}
	err = ctwire.Probe(context.Background(), ask)
	ask.Close()
	if err != nil {
		return nil, err
	}
	f := &kernelFeed{}
	if f.routes, err = nlconn.Open(nlconn.Config{Protocol: unix.NETLINK_ROUTE}); err != nil {
		return nil, err
	}
	if f.events, err = nlconn.Open(nlconn.Config{Protocol: unix.NETLINK_NETFILTER, ReceiveBuffer: room}); err != nil {
		f.routes.Close()
		return nil, err
	}
	if err := f.events.Join(ctwire.GroupNew); err != nil {
		f.close()
		return nil, fmt.Errorf("join the group of new entries: %w", err)
	}
	return f, nil
}

// tellsEvents returns the reason why the kernel would send no events.
func tellsEvents() error {
	const dir = "/proc/sys/net/netfilter/"
	b, err := os.ReadFile(dir + "nf_conntrack_events")
	switch {
	case err == nil && string(bytes.TrimSpace(b)) == "0":
		return errors.New("the kernel does not report them: sysctl net.netfilter.nf_conntrack_events is 0 in this " +
			"network namespace, set it to 1")
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(dir + "nf_conntrack_max"); err == nil {
			return errors.New("this kernel is built without CONFIG_NF_CONNTRACK_EVENTS")
		}
	}
	return nil // where it cannot be read, it is 1 or 2 nearly everywhere
}

func (f *kernelFeed) listen(each func(*ctwire.Entry), lost func()) {
	var e ctwire.Entry
	f.events.Listen(func(m nlconn.Message) {
		if m.Type == ctwire.New && e.Parse(m.Body) {
			each(&e)
		}
	}, lost)
}

func (f *kernelFeed) dropped() (uint32, error) { return f.events.Dropped() }

func (f *kernelFeed) locals(ctx context.Context) (map[netip.Addr]struct{}, error) {
	all := map[netip.Addr]struct{}{}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		addrs, err := rtnl.Addresses(ctx, f.routes, family)
		if err != nil {
			return nil, err
		}
		for _, a := range addrs {
			all[a.Addr] = struct{}{}
		}
	}
	return all, nil
}

func (f *kernelFeed) close() error { return errors.Join(f.events.Close(), f.routes.Close()) }
