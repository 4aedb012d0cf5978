package main

import (
	"net/netip"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/policy"
)

// What is refused is told when it begins and when it becomes something else, and again after it was away; not when other
// things of the Service change, and not for each address.
func TestRefusalsSV26(t *testing.T) {
	refusal := func(field, addr string, more int) policy.Refusal {
		return policy.Refusal{Field: field, Addr: netip.MustParseAddr(addr), Why: "is bad", More: more}
	}
	a, aMore, b := refusal("spec.externalIPs", "127.0.0.1", 0), refusal("spec.externalIPs", "127.0.0.1", 7), refusal("endpoints", "224.0.0.1", 1)
	web, other := cluster.Name{Namespace: "shop", Name: "web"}, cluster.Name{Namespace: "shop", Name: "other"}
	told := refusals{}
	for i, step := range []struct {
		name cluster.Name
		now  []policy.Refusal
		want string
	}{
		{web, nil, ""},
		{web, []policy.Refusal{a}, "spec.externalIPs 127.0.0.1 is bad"},
		{web, []policy.Refusal{a}, ""},
		{web, []policy.Refusal{aMore}, ""},
		{other, []policy.Refusal{a}, "spec.externalIPs 127.0.0.1 is bad"},
		{web, []policy.Refusal{aMore, b}, "spec.externalIPs 127.0.0.1 is bad, and 7 others; endpoints 224.0.0.1 is bad, and 1 other"},
		{web, nil, ""},
		{web, []policy.Refusal{a}, "spec.externalIPs 127.0.0.1 is bad"},
		{other, nil, ""},
		{web, nil, ""},
	} {
		if what, _ := told.news(step.name, step.now); what != step.want {
			t.Errorf("step %d: told %q, want %q", i, what, step.want)
		}
	}
	if len(told) != 0 {
		t.Errorf("%d Services are remembered, and none has anything wrong", len(told))
	}
}
