package inspect

import "testing"

// A connection whose client has closed it, or repeats its SYN no more, is not pinned (NT-05).
func TestGaveUp(t *testing.T) {
	for _, c := range []struct {
		c    Connection
		want bool
	}{
		{Connection{State: "ESTABLISHED", Answered: true, Timeout: 86400}, false},
		{Connection{State: "SYN_SENT", Timeout: 119}, false},
		{Connection{State: "SYN_SENT", Timeout: 57}, false},
		{Connection{State: "SYN_SENT", Timeout: 55}, true},
		{Connection{State: "FIN_WAIT", Answered: true, Timeout: 119}, true},
		{Connection{State: "CLOSE_WAIT", Answered: true, Timeout: 59}, true},
		{Connection{Timeout: 20}, false}, // UDP
	} {
		if got := c.c.gaveUp(); got != c.want {
			t.Errorf("%+v: %v, want %v", c.c, got, c.want)
		}
	}
}
