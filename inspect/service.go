package inspect

import (
	"time"

	"kube-proxy/lb"
	"kube-proxy/policy"
)

// Service returns all that decides about one Service, and what came of it. The Service is said as people do: "ns/name", or "name" where one
// alone has it. Endpoints of a port other than the one that is said behind ":" are left out.
func (i *Inspector) Service(said string) (*Detail, error) {
	name, port, err := i.find(said)
	if err != nil {
		return nil, err
	}
	v := i.cfg.Store.View(name)
	if v.Service == nil { // it went just now
		return nil, i.unknown(name.String(), name.Name)
	}
	failing := i.failing()
	d := &Detail{Service: i.service(v, failing), SourceRanges: v.Service.SourceRanges, HealthCheck: v.Service.HealthCheckNodePort, Families: []DetailFamily{}}
	if v.Service.Created != 0 {
		d.Created = when(time.Unix(v.Service.Created, 0).UTC())
	}
	ports, err := portsNamed(v, port)
	if err != nil {
		return nil, err
	}
	for _, f := range i.cfg.Families {
		out := DetailFamily{Family: f.Family.String(), Rows: f.rows(name, failing[name.String()], func(*lb.Frontend) bool { return true })}
		out.Endpoints, out.MoreEndpoints = f.endpoints(v, ports)
		if f.Settings != nil {
			for _, r := range policy.Refused(v, f.Settings()) {
				out.Refused = append(out.Refused, r.String())
			}
		}
		d.Families = append(d.Families, out)
	}
	return d, nil
}
