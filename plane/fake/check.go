package fake

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"kube-proxy/lb"
)

// check refuses a row that breaks a rule of package lb.
func check(family lb.Family, key lb.Key, f *lb.Frontend) error {
	if err := checkKey(family, key); err != nil {
		return fmt.Errorf("row %s: %w", key, err)
	}
	if f == nil {
		return nil
	}
	if err := checkRow(family, key, f); err != nil {
		return fmt.Errorf("row %s of %s: %w", key, f.Service, err)
	}
	return nil
}

func checkKey(family lb.Family, k lb.Key) error {
	switch {
	case !k.IsNodePort() && lb.FamilyOf(k.Addr) != family:
		return fmt.Errorf("address is not %s", family)
	case k.Addr.Zone() != "":
		return errors.New("address has a zone")
	case k.Port == 0:
		return errors.New("port 0")
	case k.Proto != lb.TCP && k.Proto != lb.UDP && k.Proto != lb.SCTP:
		return fmt.Errorf("protocol %s", k.Proto)
	}
	return nil
}

func checkRow(family lb.Family, key lb.Key, f *lb.Frontend) error {
	switch {
	case f.Key != key:
		return fmt.Errorf("has the key %s", f.Key)
	case f.Service == "":
		return errors.New("names no service")
	case f.Kind < lb.ClusterIP || f.Kind > lb.HealthCheck:
		return fmt.Errorf("kind %s", f.Kind)
	case (f.Kind == lb.NodePort || f.Kind == lb.HealthCheck) != key.IsNodePort():
		return fmt.Errorf("kind %s does not fit the key", f.Kind)
	case (f.Kind == lb.HealthCheck) != f.Accepts():
		return fmt.Errorf("kind %s does not fit the routes", f.Kind)
	case f.Accepts():
		return checkHealthCheck(f)
	case f.LocalEndpoints != 0:
		return fmt.Errorf("counts endpoints, of kind %s", f.Kind)
	case f.Affinity < 0 || f.Affinity > 24*time.Hour || f.Affinity%time.Second != 0:
		return fmt.Errorf("affinity %s", f.Affinity)
	}
	if err := checkSources(family, f.Sources); err != nil {
		return err
	}
	return checkRoutes(family, f)
}

func checkHealthCheck(f *lb.Frontend) error {
	r := f.Routes[0]
	switch {
	case f.Key.Proto != lb.TCP:
		return fmt.Errorf("health check over %s", f.Key.Proto)
	case r.From != lb.Anywhere || r.To != nil || r.Masq:
		return fmt.Errorf("health check with a route from %s", r.From)
	case f.Affinity != 0 || len(f.Sources) > 0 || f.Serving != nil:
		return errors.New("health check that knows its clients")
	case f.LocalEndpoints < 0:
		return fmt.Errorf("health check of %d endpoints", f.LocalEndpoints)
	}
	return nil
}

func checkSources(family lb.Family, sources []netip.Prefix) error {
	for i, p := range sources {
		if lb.FamilyOf(p.Addr()) != family || p != p.Masked() {
			return fmt.Errorf("source range %s", p)
		}
		if i > 0 && (sources[i-1].Overlaps(p) || sources[i-1].Addr().Compare(p.Addr()) >= 0) {
			return fmt.Errorf("source ranges %s and %s: want sorted, without overlaps", sources[i-1], p)
		}
	}
	return nil
}

func checkRoutes(family lb.Family, f *lb.Frontend) error {
	if len(f.Routes) == 0 || f.Routes[len(f.Routes)-1].From != lb.Anywhere {
		return errors.New("the last route is not for anywhere")
	}
	last := lb.From(0)
	for _, r := range f.Routes {
		if r.From <= last || r.From > lb.Anywhere {
			return fmt.Errorf("route from %s is out of order", r.From)
		}
		last = r.From
		if err := checkRoute(family, f, r); err != nil {
			return fmt.Errorf("route from %s: %w", r.From, err)
		}
	}
	return nil
}

func checkRoute(family lb.Family, f *lb.Frontend, r lb.Route) error {
	if r.Do != lb.Balance {
		switch {
		case r.Do != lb.Reject && r.Do != lb.Drop:
			return fmt.Errorf("action %s", r.Do)
		case r.To != nil:
			return fmt.Errorf("%s has a backend set", r.Do)
		case r.Masq:
			return fmt.Errorf("%s masquerades", r.Do)
		}
		return nil
	}
	if r.To == nil || len(r.To.Backends) == 0 {
		return errors.New("balances over nothing")
	}
	id := r.To.ID
	if id.Service != f.Service || id.Proto != f.Key.Proto || id.Scope != lb.Cluster && id.Scope != lb.Local {
		return fmt.Errorf("has the set of %s", id)
	}
	for i, b := range r.To.Backends {
		if lb.FamilyOf(b.Addr.Addr()) != family || b.Addr.Port() == 0 {
			return fmt.Errorf("set %s: backend %s", id, b.Addr)
		}
		if i > 0 && r.To.Backends[i-1].Addr.Compare(b.Addr) >= 0 {
			return fmt.Errorf("set %s: backends %s and %s: want sorted, without duplicates", id, r.To.Backends[i-1].Addr, b.Addr)
		}
	}
	return nil
}
