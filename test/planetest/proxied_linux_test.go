package planetest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/userspace"
	"kube-proxy/plane/userspace/redirect"
	"kube-proxy/trace"
)

// proxied makes a plane at which connections end.
func proxied(f lb.Family) (Plane, error) {
	const mark = 1 << mode.MasqueradeBit
	r, err := redirect.NewNFTables(redirect.Config{Family: f, Mark: mark})
	if err != nil {
		return nil, err
	}
	cfg := userspace.Config{Family: f, Redirector: r, ExternalIPsBounded: func() bool { return true }}
	cfg.Relay.Mark = mark
	return userspace.New(cfg)
}

// A plane at which connections end passes, because it behaves as Config.Proxied describes; each
// flaw is found, and so is a plane at which they do not end.
func TestProxiedIsProven(t *testing.T) {
	all := load(t, "")
	unsticky := mutant{row: func(g lb.Frontend) *lb.Frontend { g.Affinity = 0; return &g }}.of(proxied)
	// It accepts connections that only dead endpoints could answer, and so resets them.
	noRetry := mutant{set: func(s lb.BackendSet) lb.BackendSet {
		for _, b := range backendsOf(s) {
			if !slices.Contains(Ports, b.Addr.Port()) {
				s.Backends = lb.BackendsOf(b)
			}
		}
		return s
	}}.of(proxied)
	keepsOnEnd := func(f lb.Family) (Plane, error) {
		p, err := proxied(f)
		if err == nil {
			t.Cleanup(func() { shut(p) })
		}
		return struct{ Plane }{p}, err // without its Close
	}
	for _, c := range []struct {
		name, scenario string
		new            func(lb.Family) (Plane, error)
		found          string // part of the failure; "" for none
		shows          []Proxied
	}{
		{"addresses", "clusterip", proxied, "", []Proxied{ProxiedAddress}},
		{"policy local", "external-policy-local", proxied, "", []Proxied{ProxiedAddress}},
		{"open connections", "established-connections", proxied, "", []Proxied{ProxiedAddress}},
		{"restart", "restart", proxied, "", []Proxied{ProxiedAddress, ProxiedAffinity, ProxiedRestart}},
		{"retry", "dead-endpoint", proxied, "", []Proxied{ProxiedAddress, ProxiedReset, ProxiedRetry}},
		{"affinity", "session-affinity", proxied, "", []Proxied{ProxiedAddress}},
		{"sessions", "udp", proxied, "", nil},
		{"the kernel keeps the address", "clusterip", inKernel, "saw the source", nil},
		{"the kernel keeps connections", "restart", inKernel, "is still answered", nil},
		{"connections outlive it", "restart", keepsOnEnd, "is still answered", nil},
		{"no affinity after a restart", "restart", unsticky, "not the same backend", nil},
		{"no retry", "dead-endpoint", noRetry, "connection reset by peer", nil},
		{"the kernel does not retry", "dead-endpoint", inKernel, "refused", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			sc := named(t, all, c.scenario)
			s := &suite{Config: Config{Mode: "proxied", New: c.new, Proxied: true, Trace: func(lb.Family) trace.Mode {
				return trace.Mode{Terminates: true}
			}}, labs: newPool(t), timeout: 3 * time.Second}
			result, failures, err := s.try(sc)
			if err != nil {
				t.Fatal(err)
			}
			text := strings.Join(failures, "\n")
			if c.found == "" && text != "" {
				t.Errorf("a plane that is right fails:\n%s", text)
			}
			if c.found == "" && c.shows != nil && !slices.Equal(result.Proxied, c.shows) {
				t.Errorf("what was otherwise: %q, want %q", result.Proxied, c.shows)
			}
			for _, f := range families {
				if c.found != "" && (!strings.Contains(text, ", "+f.String()) || !strings.Contains(text, c.found)) {
					t.Errorf("%v: nothing says %q:\n%s", f, c.found, text)
				}
			}
		})
	}
}

// If the kernel redirects connections, the scenario of the dead endpoint proves that clients reach
// it: a plane that hides it fails the line.
func TestDeadEndpointIsMet(t *testing.T) {
	sc := named(t, load(t, ""), "dead-endpoint")
	for _, c := range []struct {
		name  string
		new   func(lb.Family) (Plane, error)
		fails bool
	}{
		{"the kernel", inKernel, false},
		{"who hides it", proxied, true},
	} {
		s := &suite{Config: Config{Mode: "dead", New: c.new}, labs: newPool(t), timeout: 3 * time.Second}
		_, failures, err := s.try(sc)
		if err != nil {
			t.Fatal(err)
		}
		if (len(failures) > 0) != c.fails {
			t.Errorf("%s: %s", c.name, strings.Join(failures, "\n"))
		}
	}
}
