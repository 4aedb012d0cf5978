package flows

import (
	"fmt"
	"strings"
)

// String returns the flow in words, as in "tcp ESTABLISHED 192.0.2.7:40000 to 10.96.0.10:80,
// answered by 10.1.1.11:8080, which sees 10.1.0.1:61000, for 86390s without a packet".
func (f Flow) String() string {
	var b strings.Builder
	b.WriteString(f.Proto.String())
	if f.State != "" {
		b.WriteString(" " + f.State)
	}
	fmt.Fprintf(&b, " %v to %v", f.From, f.To)
	answered := "answered"
	if !f.Answered {
		answered = "not yet answered"
	}
	if f.By != f.To || !f.Answered {
		fmt.Fprintf(&b, ", %s by %v", answered, f.By)
	}
	if f.Client != f.From {
		fmt.Fprintf(&b, ", which sees %v", f.Client)
	}
	fmt.Fprintf(&b, ", for %v without a packet", f.Timeout)
	return b.String()
}
