package inspect

import (
	"net/netip"
	"slices"

	"kube-proxy/cluster"
	"kube-proxy/debug/changes"
	"kube-proxy/engine"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// Services calls each with each Service, sorted by namespace and name, until it returns an error,
// which is returned.
func (i *Inspector) Services(each func(Service) error) (Since, error) {
	names, newest := i.listed()
	return i.services(names, Since{Newest: newest}, each)
}

// maxChanged is how many changed Services an answer has; for more, listing all costs less.
const maxChanged = 500

// ServicesSince is [Inspector.Services] for those that changed after the change of that number: its
// cost is proportional to their number.
func (i *Inspector) ServicesSince(after uint64, each func(Service) error) (Since, error) {
	entries, newest := i.cfg.Changes.After(after)
	since := Since{Newest: newest, Again: uint64(len(entries)) != newest-after}
	var names []cluster.Name
	seen := map[cluster.Name]bool{}
	for _, e := range entries {
		switch {
		case e.Service.Name == "":
			since.Again = since.Again || e.Kind != changes.Repaired && e.Kind != changes.Failed
		case !seen[e.Service]:
			seen[e.Service] = true
			names = append(names, e.Service)
		}
	}
	if since.Again = since.Again || len(names) > maxChanged; since.Again {
		return since, nil
	}
	return i.services(names, since, each)
}

func (i *Inspector) services(names []cluster.Name, since Since, each func(Service) error) (Since, error) {
	failing := i.failing()
	for _, name := range names {
		v := i.cfg.Store.View(name)
		if v.Service == nil {
			since.Gone = append(since.Gone, name.String())
		} else if err := each(i.service(v, failing)); err != nil {
			return since, err
		}
	}
	return since, nil
}

// failing has the frontends that kernels refuse, by Service.
func (i *Inspector) failing() map[string]map[lb.Key]engine.Failing {
	out := map[string]map[lb.Key]engine.Failing{}
	for _, f := range i.cfg.Families {
		if f.Stats == nil {
			continue
		}
		for _, row := range f.Stats().Failing {
			name := lb.OwnerOf(row.Service)
			if out[name] == nil {
				out[name] = map[lb.Key]engine.Failing{}
			}
			out[name][row.Key] = row
		}
	}
	return out
}

// owned is the part of a family's desired table that belongs to a Service.
type owned struct {
	rows    []*lb.Frontend
	lost    map[lb.Key]lb.Conflict // nil if it lost nothing
	refused []lb.Refused
}

func (f Family) owned(name cluster.Name) owned {
	var o owned
	full := name.String()
	f.Query(func(t *lb.Table) {
		o.rows, o.refused = t.Owned(full), t.Refused(full)
		if t.Contested() == 0 {
			return
		}
		for _, row := range o.rows {
			if c, lost := t.Lost(row.Key, full); lost {
				if o.lost == nil {
					o.lost = map[lb.Key]lb.Conflict{}
				}
				o.lost[row.Key] = c
			}
		}
	})
	return o
}

var (
	typeNames = map[cluster.ServiceType]string{cluster.TypeClusterIP: "ClusterIP", cluster.TypeNodePort: "NodePort",
		cluster.TypeLoadBalancer: "LoadBalancer", cluster.TypeExternalName: "ExternalName"}
	policyNames = map[cluster.TrafficPolicy]string{cluster.PolicyCluster: "Cluster", cluster.PolicyLocal: "Local"}
)

// service is one Service in a list.
func (i *Inspector) service(v cluster.View, failing map[string]map[lb.Key]engine.Failing) Service {
	svc := v.Service
	s := Service{
		Namespace: v.Name.Namespace, Name: v.Name.Name, Type: typeNames[svc.Type],
		Internal: policyNames[svc.InternalPolicy], External: policyNames[svc.ExternalPolicy],
		Affinity:  int(svc.AffinitySeconds),
		Endpoints: countEndpoints(v), State: OK, Severity: Fine,
	}
	for _, of := range []struct {
		kind  lb.Kind
		addrs []netip.Addr
	}{{lb.ClusterIP, svc.ClusterIPs}, {lb.ExternalIP, svc.ExternalIPs}, {lb.LoadBalancer, svc.LoadBalancerIPs}} {
		for _, a := range of.addrs {
			s.Addresses = append(s.Addresses, Address{a, of.kind.String()})
		}
	}
	for k := range svc.Ports {
		s.Ports = append(s.Ports, policy.PortOf(&svc.Ports[k]))
	}
	j := judged{&s}
	for _, f := range i.cfg.Families {
		o := f.owned(v.Name)
		for _, row := range o.rows {
			if c, lost := o.lost[row.Key]; lost {
				s.Lost++
				j.is(Contested, "%s belongs to %s", c.Key, c.Winner.Name)
				continue
			}
			s.Frontends++
			j.row(row)
		}
		for _, r := range o.refused {
			j.is(Failing, "%s: %v", r.Key, r.Err)
		}
		if f.Settings != nil {
			for _, r := range policy.Refused(v, f.Settings(v.Name)) {
				j.is(Refused, "%s", r)
			}
		}
		ours := func(a netip.Addr) bool { return lb.FamilyOf(a) == f.Family }
		if f.Stats != nil && len(o.rows) == 0 && slices.ContainsFunc(svc.ClusterIPs, ours) && !f.Stats().Begun {
			j.is(Waiting, "not written yet")
		}
	}
	for _, row := range failing[v.Name.String()] {
		j.is(Failing, "%s: %s", row.Key, row.Err)
	}
	if len(svc.ClusterIPs) == 0 && s.Frontends == 0 && s.Lost == 0 {
		j.is(NotProxied, "%s", notProxied(svc))
	}
	return s
}

func notProxied(svc *cluster.Service) string {
	if svc.Type == cluster.TypeExternalName {
		return "ExternalName: DNS returns another name"
	}
	return "headless: DNS returns the endpoints"
}

// countEndpoints counts the endpoints of the Service's first family.
func countEndpoints(v cluster.View) EndpointCounts {
	var c EndpointCounts
	ipv6 := false
	if len(v.Service.ClusterIPs) > 0 {
		ipv6 = v.Service.ClusterIPs[0].Is6()
	} else if len(v.Slices) > 0 {
		ipv6 = v.Slices[0].IPv6
	}
	for _, sl := range v.Slices {
		if sl.IPv6 != ipv6 {
			continue
		}
		for e := range sl.Endpoints.All() {
			c.All++
			switch {
			case e.Ready:
				c.Ready++
				if e.OnNode(v.Node.NodeName) {
					c.Local++
				}
			case e.Serving && e.Terminating:
				c.Terminating++
			}
		}
	}
	return c
}
