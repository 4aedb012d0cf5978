package netlab

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
)

// judged is a test that fails on purpose.
type judged struct {
	said     []string
	cleanups []func()
}

func (j *judged) Helper()           {}
func (j *judged) Cleanup(fn func()) { j.cleanups = append(j.cleanups, fn) }
func (j *judged) Error(args ...any) { j.said = append(j.said, fmt.Sprint(args...)) }
func (j *judged) Fatal(args ...any) { j.Error(args...); runtime.Goexit() }

// run runs fn as a test and returns what it said.
func (j *judged) run(fn func()) string {
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	<-done
	for _, c := range j.cleanups {
		c()
	}
	return strings.Join(j.said, "\n")
}

// What does not work in a lab for a test fails that, and the lab ends with it.
func TestForTest(t *testing.T) {
	newLab(t, Options{NoNode2: true}) // skips without root
	to := netip.MustParseAddrPort("172.18.0.2:8080")
	for _, c := range []struct {
		name string
		fn   func(l *TestLab)
		want string
	}{
		{"all is well", func(l *TestLab) {
			l.On(Node1, func() {})
			traffic := l.Traffic(Way{From: Client, To: to, Seen: Client})
			traffic.Open()
			traffic.More()
			traffic.Stop()
		}, ""},
		{"a port is taken", func(l *TestLab) { l.Serve(TCP, 8080, "pod1", Node1) }, "listen on node1 tcp 8080"},
		{"no such host", func(l *TestLab) { l.On("node9", func() {}) }, `no host "node9"`},
		{"nobody answers", func(l *TestLab) { l.Traffic(Way{From: Client, To: netip.AddrPortFrom(to.Addr(), 1)}) }, "refused"},
		{"another source", func(l *TestLab) {
			traffic := l.Traffic(Way{From: Client, To: to, Seen: "pod1"})
			traffic.More()
			traffic.Stop()
		}, "came from 172.18.0.100"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var l *TestLab
			j := &judged{}
			said := j.run(func() {
				l = ForTest(j, Options{NoNode2: true})
				l.Serve(TCP, 8080, Node1)
				c.fn(l)
			})
			if (said == "") != (c.want == "") || !strings.Contains(said, c.want) {
				t.Errorf("the test said %q, want %q", said, c.want)
			}
			if _, err := l.Namespace(Node1); err == nil {
				t.Error("the lab outlives its test")
			}
		})
	}
}
