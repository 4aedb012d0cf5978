package main

import (
	"net/netip"
	"strings"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/scenario"
)

func TestTable(t *testing.T) {
	var well, badly, passed tally
	well.add(from("pod1", pod3Addr), nil)
	badly.add(answer{}, netlab.ErrRefused)
	passed.add(from(sink, pod3Addr), nil)
	r := row{group: "shop/web: the shop", text: "pod3 -> shop/web:http : pod1 from same", kind: "ClusterIP",
		from: "pod3",
		shot: scenario.Shot{To: netip.MustParseAddrPort("10.96.0.10:80"), Proto: lb.TCP},
		want: scenario.Outcome{
			Backends: []scenario.Backend{{Host: "pod1", From: scenario.Origin{Host: scenario.Same}}}}}
	other := r
	other.group, other.kind, other.shot.To = "the rest", "NodePort", netip.MustParseAddrPort("[fd00:18::2]:30080")
	var l layout
	entries := []entry{{row: r, tally: well}, {row: r, tally: badly}, {row: other, tally: passed, before: &well}}
	got := strings.Join(l.table(entries), "\n") + "\n"
	want := `  FRONTEND                           FROM  WHO ANSWERED  SOURCE THAT THE BACKEND SAW
shop/web: the shop
✓ ClusterIP  10.96.0.10:80/tcp       pod3  pod1 100%     pod3 10.1.1.13
✗ ClusterIP  10.96.0.10:80/tcp       pod3  refused
                                           shop.txtar says: pod1 from same; but 1 of 1 connections were refused
the rest
≠ NodePort   [fd00:18::2]:30080/tcp  pod3  sink 100%     pod3 10.1.1.13
                                           before: pod1 100%
                                           node1 let it pass: the sink is where its default route leads
`
	if got != want {
		t.Errorf("table:\n%s\nwant:\n%s", got, want)
	}
	if n := verdict(entries); n != 2 {
		t.Errorf("%d rows are wrong, want 2", n)
	}
}

// Later rows use the columns of earlier ones.
func TestColumnsStay(t *testing.T) {
	var l layout
	long := row{kind: "ClusterIP", from: "client",
		shot: scenario.Shot{To: netip.MustParseAddrPort("[2001:db8:51::40]:443"), Proto: lb.TCP}}
	short := row{kind: "NodePort", from: "pod3", shot: scenario.Shot{To: netip.MustParseAddrPort("10.0.0.1:80"),
		Proto: lb.TCP}}
	first := l.table([]entry{{row: long}, {row: short}})
	later := l.rows([]entry{{row: short}})
	column := func(lines []string) int {
		for _, l := range lines {
			if strings.Contains(l, "10.0.0.1") {
				return strings.Index(l, "pod3")
			}
		}
		return -1
	}
	if column(first) < 0 || column(first) != column(later) {
		t.Errorf("column of pod3 at %d, later at %d", column(first), column(later))
	}
}

func TestComplaint(t *testing.T) {
	for line, want := range map[string]string{
		`I1123 14:05:12.833831    5365 run.go:9] "Starting kube-proxy" pid=1`: "",
		`W1123 14:05:12.833831    5365 run.go:9] ` +
			`"web.yaml:3: \"x\" is bad"`: `"web.yaml:3: \"x\" is bad"`,
		`E1123 14:05:12.833831    5365 run.go:9] "cannot write" ` +
			`family="IPv4" error="no memory"`: `"cannot write" family="IPv4" error="no memory"`,
		`panic: runtime error: invalid memory address ` +
			`or nil pointer dereference`: "panic: runtime error: invalid memory address or nil pointer dereference",
		`goroutine 1 [running]:`: "",
	} {
		if got := complaint(line); got != want {
			t.Errorf("%s\n  gives %q, want %q", line, got, want)
		}
	}
}

// The log arrives in pieces that are not whole lines.
func TestLogKeepsTheLastLines(t *testing.T) {
	l := newProxyLog()
	for range keptLines {
		if _, err := l.Write([]byte("old\n")); err != nil {
			t.Fatal(err)
		}
	}
	for _, piece := range []string{"W1123 14:05:12.833831    53", "65 run.go:9] \"oops\"\nla", "st\n"} {
		if _, err := l.Write([]byte(piece)); err != nil {
			t.Fatal(err)
		}
	}
	lines := strings.Split(l.String(), "\n")
	if len(lines) != keptLines || lines[len(lines)-1] != "  last" || lines[0] != "  old" {
		t.Errorf("%d lines, the last is %q", len(lines), lines[len(lines)-1])
	}
	select {
	case text := <-l.complaints:
		if text != `"oops"` {
			t.Errorf("complaint %q, want oops", text)
		}
	default:
		t.Error("the warning is not reported")
	}
}
