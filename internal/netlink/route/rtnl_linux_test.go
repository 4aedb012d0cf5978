package route

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/netlink"
)

// The kernel lists the requested addresses, and reports them in notifications.
func TestAddresses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	netlab.EnterForTest(t)
	for family, ip := range map[byte]string{unix.AF_INET: "10.96.0.10", unix.AF_INET6: "fd00:10:96::10"} {
		conn, events, err := Open(family, unix.RTNLGRP_LINK)
		if err != nil {
			t.Fatal(err)
		}
		noticed := make(chan netlink.Message, 100)
		go events.Listen(func(m netlink.Message) { m.Body = slices.Clone(m.Body); noticed <- m },
			func() { t.Error("messages were lost") })
		defer conn.Close()
		defer events.Close()
		name := "br-" + ip[:4]
		if l, err := FindLink(t.Context(), conn, name); err != nil || l.Index != 0 {
			t.Fatalf("before: %+v, %v", l, err)
		}
		if err := conn.Do(t.Context(), ChangeLink(Link{Name: name, Kind: "bridge", Flags: unix.IFF_NOARP},
			unix.IFF_NOARP), nil); err != nil {
			t.Fatal(err)
		}
		l, err := FindLink(t.Context(), conn, name)
		if err != nil || l.Kind != "bridge" || l.Flags&unix.IFF_NOARP == 0 || l.Flags&unix.IFF_UP != 0 {
			t.Fatalf("%+v, %v", l, err)
		}
		a := Address{Addr: netip.MustParseAddr(ip), Bits: 32, Index: l.Index, Scope: unix.RT_SCOPE_HOST,
			Flags: unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE}
		want := a
		want.Flags = want.Flags&^unix.IFA_F_NODAD | unix.IFA_F_PERMANENT // only IPv6 looks for duplicates
		if family == unix.AF_INET6 {
			a.Bits, a.Flags = 128, a.Flags|unix.IFA_F_DEPRECATED
			// Both are fixed for IPv6.
			want.Bits, want.Flags, want.Scope = 128, a.Flags|unix.IFA_F_PERMANENT, unix.RT_SCOPE_UNIVERSE
		}
		if here, err := LeadsHere(t.Context(), conn, a.Addr); here || err != nil {
			t.Errorf("%s is here already: %v", ip, err)
		}
		var e netlink.Encoder
		AppendAddress(&e, unix.RTM_NEWADDR, unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL, a)
		AppendAddress(&e, unix.RTM_NEWADDR, unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL, a)
		var outcomes [2]error
		if err := conn.Each(t.Context(), e.B, func(i int, err error) { outcomes[i] = err }); err != nil ||
			outcomes[0] != nil || !errors.Is(outcomes[1], unix.EEXIST) {
			t.Fatalf("%v, %v", outcomes, err)
		}
		all, err := Addresses(t.Context(), conn, family)
		if err != nil || len(all) != 1 || all[0] != want {
			t.Errorf("listed %+v, %v\nwant %+v", all, err, want)
		}
		expectNotice(t, noticed, unix.RTM_NEWLINK, func(b []byte) bool {
			got, ok := ParseLink(b)
			return ok && got.Name == name
		})
		expectNotice(t, noticed, unix.RTM_NEWADDR, func(b []byte) bool {
			got, ok := ParseAddress(b)
			return ok && got.Addr == a.Addr
		})
		for end := time.Now().Add(10 * time.Second); ; {
			if here, err := LeadsHere(t.Context(), conn, a.Addr); here {
				break
			} else if err != nil || time.Now().After(end) {
				t.Fatalf("packets to %s do not come here: %v", ip, err)
			}
		}
		if err := conn.Do(t.Context(), DeleteLink(l.Index), nil); err != nil {
			t.Error(err)
		}
		expectNotice(t, noticed, unix.RTM_DELADDR, func(b []byte) bool {
			got, ok := ParseAddress(b)
			return ok && got.Addr == a.Addr
		})
		expectNotice(t, noticed, unix.RTM_DELLINK, func(b []byte) bool {
			got, ok := ParseLink(b)
			return ok && got.Index == l.Index
		})
	}
}

// expectNotice waits for a notification.
func expectNotice(t *testing.T, noticed <-chan netlink.Message, typ uint16, is func([]byte) bool) {
	t.Helper()
	for end := time.After(10 * time.Second); ; {
		select {
		case m := <-noticed:
			if m.Type == typ && is(m.Body) {
				return
			}
		case <-end:
			t.Fatalf("no notification %d", typ)
		}
	}
}

// FuzzMessages: no message makes the readers panic.
func FuzzMessages(f *testing.F) {
	var e netlink.Encoder
	AppendAddress(&e, unix.RTM_NEWADDR, 0, Address{Addr: netip.MustParseAddr("10.96.0.10"), Bits: 32, Index: 1})
	f.Add(e.B[unix.SizeofNlMsghdr:])
	f.Add(ChangeLink(Link{Name: "kube-ipvs0", Kind: "dummy"}, 0)[unix.SizeofNlMsghdr:])
	f.Fuzz(func(t *testing.T, body []byte) {
		if a, ok := ParseAddress(body); ok && !a.Addr.IsValid() {
			t.Errorf("% x: an address that is none", body)
		}
		ParseLink(body)
	})
}
