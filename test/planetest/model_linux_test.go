package planetest

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/fake"
	"kube-proxy/test/scenario"
)

// rows is a model that follows the frontends written by a plane, except for one flaw.
type rows struct {
	family lb.Family
	plane  *fake.Plane
	flaw   string
	gone   map[lb.Key]*lb.Frontend // all frontends that ever existed
}

// Flaws of a model.
const (
	missesOne    = "one backend is never reached"
	wrongPort    = "backends are reached at another port"
	unsteady     = "clients do not stay"
	masquerades  = "every source is the node"
	letsAllIn    = "source ranges do not count"
	remembers    = "what has gone is still served"
	forgets      = "connections end with every change"
	outsideIsPod = "who comes from outside is treated as a pod"
	nothingThere = "nothing is translated"
)

func (m *rows) New() (Plane, error) {
	if m.plane == nil {
		m.plane = fake.New(m.family)
	} else {
		m.plane = m.plane.Successor()
	}
	return m.plane, nil
}

func (m *rows) row(c Connection) *lb.Frontend {
	held := m.plane.Frontends()
	if m.flaw == remembers {
		for k, row := range held {
			m.gone[k] = row
		}
		held = m.gone
	}
	k := lb.Key{Addr: c.To.Addr(), Port: c.To.Port(), Proto: c.Proto}
	if row := held[k]; row != nil || !c.ToNode {
		return row
	}
	k.Addr = netip.Addr{}
	return held[k]
}

func (m *rows) Meets(c Connection) Meeting {
	row := m.row(c)
	if row == nil || row.Accepts() || m.flaw == nothingThere {
		return Meeting{}
	}
	host, _ := netlab.HostByName(c.From)
	in := func(p netip.Prefix) bool { return p.Contains(host.Addr(m.family == lb.IPv6)) }
	if len(row.Sources) > 0 && !slices.ContainsFunc(row.Sources, in) && m.flaw != letsAllIn {
		return Meeting{By: "ranges"}
	}
	for _, route := range row.Routes {
		switch pod := host.Pod() || m.flaw == outsideIsPod; {
		case route.From == lb.Pods && !pod, route.From == lb.Host && c.From != netlab.Node1:
			continue
		case route.Do != lb.Balance:
			return Meeting{}
		}
		got := Meeting{By: "row", Sticky: row.Affinity > 0 && m.flaw != unsteady, Kept: !route.Masq &&
			m.flaw != masquerades}
		for b := range route.To.Backends.All() {
			if m.flaw == wrongPort {
				b.Addr = netip.AddrPortFrom(b.Addr.Addr(), b.Addr.Port()+1)
			}
			got.Backends = append(got.Backends, b.Addr)
		}
		if m.flaw == missesOne {
			got.Backends = got.Backends[1:]
		}
		return got
	}
	return Meeting{}
}

func (m *rows) Lives(Meeting, netip.AddrPort) bool { return m.flaw != forgets }

// A model that follows the frontends passes, and the lines find each flaw of one that does not.
func TestModelIsProven(t *testing.T) {
	all := (&Config{Model: func(lb.Family, scenario.Settings) (Model, error) { return nil, nil }}).load(t)
	scenarios := []string{"clusterip", "nodeport", "external-policy-local", "source-ranges", "session-affinity",
		"session-affinity-switch",
		"established-connections", "udp", "type-change", "port-change", "scale-to-zero-and-back",
		"same-port-different-protocols", "multiple-slices"}
	for flaw, found := range map[string]string{
		"":           "",
		missesOne:    "is not reached",
		wrongPort:    "is no backend of the row",
		unsteady:     "does not stay",
		masquerades:  "does not see the client's own address",
		letsAllIn:    "may answer",
		remembers:    "is no backend of the row",
		forgets:      "has ended",
		outsideIsPod: "may answer",
		nothingThere: "may answer",
	} {
		s := &suite{Config: Config{Mode: "rows", KeepsSources: true,
			Model: func(f lb.Family, _ scenario.Settings) (Model, error) {
				return &rows{family: f, flaw: flaw, gone: map[lb.Key]*lb.Frontend{}}, nil
			}}}
		var text string
		for _, name := range scenarios {
			sc := named(t, all, name)
			result, failures, err := s.try(sc)
			if err != nil {
				t.Fatal(err)
			}
			text += strings.Join(failures, "\n")
			// The model masquerades no hairpins.
			if flaw == "" && slices.ContainsFunc(result.Modelled,
				func(how Modelled) bool { return how != ModelledSilence && how != ModelledClient }) {
				t.Errorf("%s: a model that is right shows %q", name, result.Modelled)
			}
		}
		for _, f := range families {
			if found == "" && text != "" || found != "" && (!strings.Contains(text, found) ||
				!strings.Contains(text, ", "+f.String())) {
				t.Errorf("%q, %s: want a failure that says %q:\n%s", flaw, f, found, text)
			}
		}
	}
}

// An intended difference excuses a model only where it shows exactly that: a model that translates
// nothing, or not everything, passes no scenario with an answer, except those with exactly this
// difference.
func TestModelHasNoExcuse(t *testing.T) {
	all := (&Config{Model: func(lb.Family, scenario.Settings) (Model, error) { return nil, nil }}).load(t)
	answered := func(p scenario.Packet) bool {
		return len(p.Want.Backends) > 0 && p.Want.Backends[0].Host != netlab.Sink
	}
	for flaw, excused := range map[string][]string{
		// whose lines are about packets that no Service has
		missesOne: {"external-ip-of-api-server", "no-traffic-for-strangers"},
		wrongPort: {"external-ip-of-api-server", "no-traffic-for-strangers"},
		nothingThere: {"external-ip-of-api-server", "no-traffic-for-strangers", "nodeport-addresses-ranges", "sctp",
			"source-ranges-local-policy", "source-ranges-node"},
	} {
		s := &suite{Config: Config{Mode: "rows", Model: func(f lb.Family, _ scenario.Settings) (Model, error) {
			return &rows{family: f, flaw: flaw}, nil
		}}}
		var passed []string
		for _, sc := range all {
			if !slices.ContainsFunc(sc.States, func(st *scenario.State) bool {
				return slices.ContainsFunc(st.Packets,
					answered)
			}) {
				continue
			}
			if _, failures, err := s.try(sc); err != nil {
				t.Fatal(err)
			} else if len(failures) == 0 {
				passed = append(passed, sc.Name)
			}
		}
		slices.Sort(passed)
		if !slices.Equal(passed, excused) {
			t.Errorf("%s: passes %q, want %q", flaw, passed, excused)
		}
	}
}
