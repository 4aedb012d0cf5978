package listen

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// HT-14: unchanged listeners stay open, new ones open before old ones close, except in a conflict;
// and the result is all of the new addresses or the old ones.
func TestRebind(t *testing.T) {
	for _, test := range []struct {
		name, old, want string
		refused         string // address
		did             string
	}{
		{"first", "", "tcp 192.0.2.1:80", "", "open tcp 192.0.2.1:80"},
		{"the same", "tcp 192.0.2.1:80", "tcp 192.0.2.1:80", "", ""},
		{"another address", "tcp 192.0.2.1:80", "tcp 192.0.2.2:80", "", "open tcp 192.0.2.2:80, close 192.0.2.1:80"},
		{"another port of all addresses", "tcp 0.0.0.0:80", "tcp 0.0.0.0:81", "",
			"open tcp 0.0.0.0:81, close 0.0.0.0:80"},
		{"one address to all", "tcp 192.0.2.1:80", "tcp 0.0.0.0:80", "", "close 192.0.2.1:80, open tcp 0.0.0.0:80"},
		{"all to one address", "tcp [::]:80", "tcp 192.0.2.1:80", "", "close [::]:80, open tcp 192.0.2.1:80"},
		{"all of one family to all of both", "tcp4 0.0.0.0:80", "tcp 0.0.0.0:80", "",
			"close 0.0.0.0:80, open tcp 0.0.0.0:80"},
		{"one of two stays", "tcp4 192.0.2.1:80 tcp6 [2001:db8::1]:80", "tcp6 [2001:db8::1]:80 tcp4 192.0.2.2:80", "",
			"open tcp4 192.0.2.2:80, close 192.0.2.1:80"},
		{"none", "tcp4 192.0.2.1:80 tcp6 [2001:db8::1]:80", "", "", "close 192.0.2.1:80, close [2001:db8::1]:80"},
		{"cannot be had", "tcp 192.0.2.1:80", "tcp 192.0.2.2:80", "192.0.2.2:80", ""},
		{"the second cannot be had", "tcp 192.0.2.1:80", "tcp 192.0.2.2:80 tcp 192.0.2.3:80", "192.0.2.3:80",
			"open tcp 192.0.2.2:80, close 192.0.2.2:80"},
		{"cannot be had, and the old one was in the way", "tcp 0.0.0.0:80", "tcp 192.0.2.2:80", "192.0.2.2:80",
			"close 0.0.0.0:80, open tcp 0.0.0.0:80"},
		{"cannot be had, nor the old one again", "tcp 0.0.0.0:80", "tcp 192.0.2.2:80", "", "close 0.0.0.0:80"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := &fake{}
			b := &Binding{Open: f.listen, Serve: acceptOnly, Broke: func(at netip.AddrPort, err error) {
				t.Errorf("%s broke: %v", at, err)
			}}
			if err := b.Rebind(t.Context(), addresses(t, test.old)); err != nil {
				t.Fatal(err)
			}
			f.did()
			fails := strings.Contains(test.name, "cannot be had")
			if fails {
				f.Refuse(test.refused, "refused")
			}
			if err := b.Rebind(t.Context(), addresses(t, test.want)); (err != nil) != fails {
				t.Errorf("error %v", err)
			}
			if got := f.did(); got != test.did {
				t.Errorf("did %s, want %s", got, test.did)
			}
			b.Close()
		})
	}
}

// An address that this machine does not have is no reason to close a listener for all addresses.
func TestRebindNowhere(t *testing.T) {
	f := &fake{}
	b := &Binding{Open: f.listen, Serve: acceptOnly}
	if err := b.Rebind(t.Context(), addresses(t, "tcp 0.0.0.0:80")); err != nil {
		t.Fatal(err)
	}
	f.did()
	f.Fail("192.0.2.9:80", &net.OpError{Op: "listen", Err: syscall.EADDRNOTAVAIL})
	if err := b.Rebind(t.Context(), addresses(t, "tcp 192.0.2.9:80")); !errors.Is(err, syscall.EADDRNOTAVAIL) ||
		f.did() != "" {
		t.Errorf("error %v, did %s", err, f.did())
	}
	b.Close()
	b.serving.Wait()
}

// A listener that ends without our close broke, whatever the error is. The next Rebind opens it
// again; the Binding requests that after a delay.
func TestListenerFails(t *testing.T) {
	for _, why := range []error{errors.New("no memory"), net.ErrClosed, nil} {
		synctest.Test(t, func(t *testing.T) {
			f, begin := &fake{}, time.Now()
			b := &Binding{
				Open: f.listen, Serve: acceptOnly,
				Broke:  func(at netip.AddrPort, err error) { f.Say("broke", at.String(), time.Since(begin).String()) },
				Reopen: func() { f.Say("reopen", time.Since(begin).String()) },
			}
			if err := b.Rebind(t.Context(), addresses(t, "tcp 192.0.2.1:80 tcp 192.0.2.2:80")); err != nil {
				t.Fatal(err)
			}
			f.did()
			f.Break(why)
			pass(time.Minute)
			if got, want := f.did(), "broke 192.0.2.2:80 0s, reopen 1s"; got != want {
				t.Errorf("%v: %s, want %s", why, got, want)
			}
			if err := b.Rebind(t.Context(), addresses(t, "tcp 192.0.2.1:80 tcp 192.0.2.2:80")); err != nil {
				t.Fatal(err)
			}
			if got, want := f.did(), "close 192.0.2.2:80, open tcp 192.0.2.2:80"; got != want {
				t.Errorf("%v: %s, want %s", why, got, want)
			}
			b.Close()
			pass(time.Minute)
			if got, want := f.did(), "close 192.0.2.1:80, close 192.0.2.2:80"; got != want {
				t.Errorf("%v: at the end %s, want %s", why, got, want)
			}
		})
	}
}
