package trace

import (
	"fmt"
	"math"
	"strings"

	"kube-proxy/internal/plural"
	"kube-proxy/lb"
)

// Text returns the answer to the question about p as a screen for people, with the kernel's way if
// it differs from the table. What comes from others is escaped, see [lb.Printable].
func (a Answer) Text(p Packet) string {
	if len(a.Findings) > 0 {
		return a.text(p, 8, 12)
	}
	return a.text(p, 8, 0)
}

// Wide is Text with all backends and all of the kernel's way.
func (a Answer) Wide(p Packet) string { return a.text(p, math.MaxInt, math.MaxInt) }

// text shows at most so many backends, and so many lines of the kernel's way; no count of them for
// 0.
func (a Answer) text(p Packet, maxBackends, maxWay int) string {
	var b strings.Builder
	line := func(format string, args ...any) { b.WriteString(lb.Printable(fmt.Sprintf(format, args...)) + "\n") }
	head := func(format string, args ...any) {
		b.WriteByte('\n')
		line(format, args...)
	}
	line("%s", p)
	line("%s", a.headline())
	b.WriteByte('\n')
	for _, s := range a.Why {
		line("  %s", s)
	}
	if len(a.Backends) > 0 {
		head("backends")
		backends(line, a.Backends, maxBackends)
	}
	if k := a.Kernel; k != nil {
		as := ""
		if len(a.Findings) == 0 {
			as = ", as the table says"
		}
		head("kernel: %s%s%s", k.Verdict, masqueraded(k.Masquerade), as)
		if k.Affine.IsValid() {
			line("  keeps this client with %s", k.Affine)
		}
		for i, w := range k.Way {
			if maxWay == 0 {
				break
			}
			if i == maxWay {
				line("  and %s", plural.Count(len(k.Way)-i, "line", "lines"))
				break
			}
			line("  %s", w)
		}
	}
	return b.String()
}

// headline is the verdict in a line.
func (a Answer) headline() string {
	if a.FrontendKey == "" {
		return string(a.Verdict)
	}
	s := fmt.Sprintf("%s  %s  %s", a.Verdict, a.Service, a.FrontendKey)
	if !strings.HasPrefix(a.FrontendKey, "nodeport:") {
		s += " (" + a.Kind + ")"
	}
	if a.Route != "" {
		s += "  route " + a.Route
	}
	return s + masqueraded(a.Masquerade)
}

// Lead returns the differences between table and kernel; "" for none.
func (a Answer) Lead() string {
	if len(a.Findings) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("THE KERNEL DIFFERS from the table\n")
	for _, f := range a.Findings {
		b.WriteString("  " + lb.Printable(f) + "\n")
	}
	b.WriteString("  do: kube-proxy diff, which names the objects; the next audit repairs them\n")
	return b.String()
}

func masqueraded(yes bool) string {
	if yes {
		return "  masqueraded"
	}
	return ""
}

func backends(line func(string, ...any), bs []Backend, most int) {
	for i, b := range bs {
		if i == most {
			line("  and %s", plural.Count(len(bs)-i, "other", "others"))
			return
		}
		note := ""
		if b.Hairpin {
			note = "  the client itself: masqueraded"
		}
		line("  %-32s %6.2f %%%s", b.Address, 100*b.Share, note)
	}
}

// String returns "10.1.1.11 → 10.96.0.10:80/tcp".
func (p Packet) String() string {
	from := p.From.Addr().String()
	if p.From.Port() != 0 {
		from = p.From.String()
	}
	if p.In != "" {
		from += " (through " + p.In + ")"
	}
	return from + " → " + target(p)
}

// target is where a packet goes, as text.
func target(p Packet) string {
	if p.Proto == ICMPv4 || p.Proto == ICMPv6 {
		return p.To.Addr().String() + "/icmp"
	}
	return lb.Key{Addr: p.To.Addr(), Port: p.To.Port(), Proto: p.Proto}.String()
}
