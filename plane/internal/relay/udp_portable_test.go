package relay

import (
	"testing"
	"time"
)

// The timer of idle sessions may have fired when the engine stops, and then finds that nothing is left to do.
func TestUDPPortableIdleAfterStop(t *testing.T) {
	r := startUDP(t, Config{UDPIdle: time.Minute}, udpEngines["portable"])
	l := listenUDP(t, r, loopback, to(boundAt(udpEcho(t, loopback, nil))))
	if !ask(t, dialUDP(t, l.Addr()), "open", patience) {
		t.Fatal("no answer")
	}
	p := r.udp.(*portableUDP)
	p.stop()
	p.tend()
	if p.tending != nil {
		t.Error("the timer is set again")
	}
}
