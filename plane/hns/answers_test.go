package hns_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane/hns"
	"kube-proxy/test/hnsfake"
)

// once fails the n-th call of a name.
func (n *windowsNode) once(name string, f hnsfake.Fault) {
	done := false
	n.FailWith(func(c hnsfake.Call) *hnsfake.Fault {
		if done || c.Name != name {
			return nil
		}
		done = true
		return &f
	})
}

// always fails all calls of a name.
func (n *windowsNode) always(name string, f hnsfake.Fault) {
	n.FailWith(func(c hnsfake.Call) *hnsfake.Fault {
		if c.Name != name {
			return nil
		}
		return &f
	})
}

// badAnswers are answers of a faulty HNS, and the words that report them.
var badAnswers = map[string]struct {
	fault hnsfake.Fault
	says  string
}{
	"element not found": {hnsfake.Fault{Code: hns.CodeElementNotFound}, "element not found (0x490)"},
	"already exists":    {hnsfake.Fault{Code: hns.CodeAlreadyExists}, "already exists (0xb7)"},
	"port exists":       {hnsfake.Fault{Code: hns.CodePortExists}, "already exists (0x803b0013)"},
	"RPC failed":        {hnsfake.Fault{Code: hns.CodeServiceUnreachable}, "HNS cannot be reached (0x6ba)"},
	"denied":            {hnsfake.Fault{Code: hns.CodeAccessDenied}, "access denied (0x5)"},
}

// A bad answer to one change fails only its frontend, with the call and the answer. The other
// frontends of the batch are written, and the next attempt succeeds (DP-46).
func TestBadAnswersToAChange(t *testing.T) {
	for what, bad := range badAnswers {
		for _, call := range []string{"CreateEndpoint", "CreateLoadBalancer", "ModifyLoadBalancer",
			"DeleteLoadBalancer"} {
			t.Run(fmt.Sprintf("%s to %s", what, call), func(t *testing.T) {
				n, p, table := started(t, 2, 3)
				var changes []lb.Change
				add := func(c []lb.Change, _ []lb.Conflict) { changes = append(changes, c...) }
				switch call {
				case "ModifyLoadBalancer":
					add(table.Replace(world.ClusterIP(0, 0, 2)))
				case "DeleteLoadBalancer":
					add(table.Replace(lb.Owner{Name: serviceName(0)}, nil))
				}
				add(table.Replace(world.ClusterIP(5, 30, 3)))
				add(table.Replace(world.ClusterIP(6, 60, 3)))
				n.once(call, bad.fault)
				_, err := p.Apply(t.Context(), changes)
				// A missing object is deleted.
				gone := call == "DeleteLoadBalancer" && errors.Is(hns.KindOf(bad.fault.Code), hns.ErrNotFound)
				if !gone {
					says(t, err, call, bad.says, changes[0].Key.String())
					if strings.Count(err.Error(), "/tcp (") != 1 {
						t.Errorf("more than a row failed: %v", err)
					}
				}
				if _, ok := n.balancerOf("10.0.0.7", 80); !ok {
					t.Errorf("the other row is not served:\n%s", n.Own())
				}
				if gone {
					return // HNS reported a false success; the next test covers that
				}
				for range 2 { // an answer may have left doubtful objects
					_, err = p.Apply(t.Context(), changes)
					if err == nil {
						break
					}
				}
				if err != nil {
					t.Fatal(err)
				}
				n.asFresh(t, p, table)
			})
		}
	}
}

// asFresh checks that HNS holds the result of a fresh start, after an audit.
func (n *windowsNode) asFresh(t *testing.T, p testPlane, table *lb.Table) {
	t.Helper()
	if _, err := p.Audit(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	n.isFresh(t, lb.IPv4, table)
	if touched := n.Touched(); len(touched) > 0 {
		t.Errorf("touched %q", touched)
	}
}

// isFresh checks that HNS holds the result of a fresh start.
func (n *windowsNode) isFresh(t *testing.T, f lb.Family, table *lb.Table) {
	t.Helper()
	fresh := newNode(hns.L2Bridge, hnsfake.Everything)
	reset(t, fresh.plane(t, f), table)
	if n.Own() != fresh.Own() {
		t.Errorf("held:\n%s\nwant:\n%s", n.Own(), fresh.Own())
	}
}

// A Reset or an audit whose list fails reports it and changes nothing (PN-76).
func TestBadLists(t *testing.T) {
	for _, call := range []string{"Features", "Networks", "Endpoints", "LoadBalancers"} {
		for what, bad := range badAnswers {
			n, p, _ := started(t, 6, 3)
			before := n.Own()
			n.once(call, bad.fault)
			_, err := p.Audit(t.Context(), true)
			says(t, err, "audit", call, bad.says)
			n.once(call, bad.fault)
			_, err = p.Reset(t.Context(), &lb.Table{})
			says(t, err, "reset", call, bad.says)
			if n.Own() != before {
				t.Errorf("%s to %s: something was written", what, call)
			}
		}
	}
}

// The error about a frontend that HNS does not remove names the Service that had it.
func TestRefusedRemovalNamesService(t *testing.T) {
	n, p, table := started(t, 1, 1)
	owner, _ := service(0)
	changes, _ := table.Replace(owner, nil)
	if len(changes) == 0 {
		t.Fatal("nothing is removed")
	}
	n.once("DeleteLoadBalancer", hnsfake.Fault{Code: hns.CodeInvalidPolicy})
	_, err := p.Apply(t.Context(), changes)
	says(t, err, changes[0].Key.String()+" (ns/svc-0:http)")
}
