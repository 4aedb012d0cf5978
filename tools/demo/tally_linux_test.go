package main

import (
	"errors"
	"net/netip"
	"reflect"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/scenario"
)

var (
	pod3Addr  = netip.MustParseAddr("10.1.1.13")
	node1Addr = netip.MustParseAddr("172.18.0.2")
)

// from returns the result of a connection of pod3.
func from(server string, seen netip.Addr) answer {
	return answer{server: server, port: 8080, seen: seen, local: pod3Addr}
}

func TestWhoAndSources(t *testing.T) {
	var ta tally
	ta.add(from("pod2", node1Addr), nil)
	ta.add(from("pod1", pod3Addr), nil)
	ta.add(from("pod1", pod3Addr), nil)
	if got, want := ta.who(), "pod1 67%  pod2 33%"; got != want {
		t.Errorf("who: %q, want %q", got, want)
	}
	if got, want := ta.sources(), "node1 172.18.0.2, pod3 10.1.1.13"; got != want {
		t.Errorf("sources: %q, want %q", got, want)
	}
	ta.add(answer{}, netlab.ErrRefused)
	if got, want := ta.who(), "pod1 50%  pod2 25%  refused 25%"; got != want {
		t.Errorf("who with a refusal: %q, want %q", got, want)
	}
	var refused tally
	refused.add(answer{}, netlab.ErrRefused)
	if got, want := refused.who(), "refused"; got != want {
		t.Errorf("who of a refusal: %q, want %q", got, want)
	}
	if got, want := refused.comparedTo(ta), "pod1 50%  pod2 25%  refused 25%, which saw node1 172.18.0.2, pod3 "+
		"10.1.1.13"; got != want {
		t.Errorf("before: %q, want %q", got, want)
	}
}

func TestCheck(t *testing.T) {
	outcome := func(text string) scenario.Outcome {
		t.Helper()
		s, err := scenario.Parse("x.txtar", []byte("x\nRows: SV-12\n-- packets --\npod3 -> 10.0.0.1:80 : "+text+"\n"),
			"---\n")
		if err != nil {
			t.Fatal(err)
		}
		return s.States[0].Packets[0].Want
	}
	type ends struct {
		a   answer
		err error
	}
	pod1, pod2 := ends{a: from("pod1", pod3Addr)}, ends{a: from("pod2", pod3Addr)}
	masked := ends{a: from("pod1", node1Addr)}
	refused, silent := ends{err: netlab.ErrRefused}, ends{err: netlab.ErrTimeout}
	for _, c := range []struct {
		want string
		met  []ends
		bad  []string
	}{
		{"pod1, pod2 from same", []ends{pod1, pod2}, nil},
		{"pod1, pod2 from same", []ends{pod1}, []string{"pod2 did not answer"}},
		{"pod1 from same", []ends{pod1, pod2}, []string{"pod2 answered"}},
		{"pod1 from same", []ends{masked}, []string{"pod1 saw 172.18.0.2"}},
		{"pod1 from node1", []ends{masked}, nil},
		{"pod1 from 172.18.0.2", []ends{masked}, nil},
		{"pod1 from 172.18.0.3", []ends{masked}, []string{"pod1 saw 172.18.0.2"}},
		{"pod1", []ends{pod1, masked}, nil},
		{"pod1:8081", []ends{pod1}, []string{"pod1 was reached at port 8080, not 8081"}},
		{"one of pod1, pod2 from same sticky", []ends{pod1, pod1}, nil},
		{"one of pod1, pod2 from same sticky", []ends{pod1, pod2}, []string{"met 2 pods, not one"}},
		{"one of pod1, pod2 sticky", []ends{silent}, []string{"1 of 1 connections were without an answer"}},
		{"pod1", []ends{pod1, refused}, []string{"1 of 2 connections were refused"}},
		{"pod1, pod2", []ends{refused}, []string{"1 of 1 connections were refused"}},
		{"pod1, pod2", nil, []string{"nothing was sent"}},
		{"refused", []ends{refused, refused}, nil},
		{"refused", []ends{silent}, []string{"1 of 1 connections were without an answer"}},
		{"dropped", []ends{silent}, nil},
		{"dropped", []ends{pod1}, []string{"1 of 1 connections were answered"}},
		{"dropped", []ends{{err: errors.New("boom")}}, []string{"1 connections failed: boom"}},
	} {
		var ta tally
		for _, m := range c.met {
			ta.add(m.a, m.err)
		}
		got := check(outcome(c.want), ta)
		if !reflect.DeepEqual(got, c.bad) {
			t.Errorf("%s: met %v: %q, want %q", c.want, c.met, got, c.bad)
		}
	}
}

// A change is one of the answering backends and their sources, not of the counts.
func TestOutcomeIgnoresCounts(t *testing.T) {
	var a, b tally
	a.add(from("pod1", pod3Addr), nil)
	b.add(from("pod1", pod3Addr), nil)
	b.add(from("pod1", pod3Addr), nil)
	if a.outcome() != b.outcome() {
		t.Errorf("%q and %q are not the same outcome", a.outcome(), b.outcome())
	}
	b.add(from("pod1", node1Addr), nil)
	if a.outcome() == b.outcome() {
		t.Errorf("another source is the same outcome %q", a.outcome())
	}
}
