package health

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
)

// portKey is the key of the context of a connection under which its port is.
type portKey struct{}

// serve answers any request on a healthCheckNodePort (HT-10).
func (s *Services) serve(w http.ResponseWriter, r *http.Request) {
	service, n, known := s.count(r.Context().Value(portKey{}).(*port))
	healthy := s.cfg.Healthy()
	code := http.StatusServiceUnavailable
	if n > 0 && healthy {
		code = http.StatusOK
	}
	if !known {
		w.Header().Set("Connection", "close") // the next request must open a new connection
	}
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(n)) // HT-11
	b := body{LocalEndpoints: n, ServiceProxyHealthy: healthy}
	b.Service.Namespace, b.Service.Name, _ = strings.Cut(service, "/")
	text, _ := json.MarshalIndent(b, "", "\t") // strings and numbers can always be written
	answer(w, code, text)
}

// count returns the Service of a port and the number of its endpoints on this node: that of the
// family with more, since a pod of both families has an address in each. Known is false for a
// deleted Service.
func (s *Services) count(p *port) (service string, n int, known bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, f := range p.rows {
		if f != nil && f.Service == p.service {
			n, known = max(n, f.LocalEndpoints), true
		}
	}
	return p.service, n, known
}

// body is what load balancers have always read at such ports, byte for byte (HT-12).
type body struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}
