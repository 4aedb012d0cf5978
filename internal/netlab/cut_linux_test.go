package netlab

import (
	"errors"
	"net/netip"
	"testing"
	"time"
)

// A cut host gets and sends nothing; without the cut it answers again.
func TestCut(t *testing.T) {
	l := ForTest(t, Options{})
	if _, err := l.Listen("pod4", TCP, 80); err != nil {
		t.Fatal(err)
	}
	dial := func() error {
		_, err := l.Dial("pod1", TCP, netip.AddrPortFrom(Addr("pod4", false), 80), DialOptions{Timeout: time.Second})
		return err
	}
	for range 2 {
		if err := dial(); err != nil {
			t.Error(err)
		}
		if err := l.Cut(Node2, true); err != nil {
			t.Fatal(err)
		}
		if err := dial(); !errors.Is(err, ErrTimeout) {
			t.Errorf("a cut host: %v", err)
		}
		if err := l.Cut(Node2, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Cut("no-host", true); err == nil {
		t.Error("an unknown host is cut")
	}
}
