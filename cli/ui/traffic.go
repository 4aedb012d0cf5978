package ui

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"kube-proxy/debug/api"
	"kube-proxy/debug/inspect"
)

// linger is how long traffic is counted, and rates are sent, after a page's last request.
const linger = 6 * time.Second

// rates are connections and bytes per second of Services now.
type rates struct {
	Services map[string][2]float64 `json:"services"` // by "ns/name"
	Known    bool                  `json:"known"`    // other Services have no traffic
	Counted  bool                  `json:"counted"`  // the mode counts bytes too
	Note     string                `json:"note"`     // why rates are unknown or incomplete
	at       time.Time
}

// meter reads traffic from the proxy while pages show it. One query serves all pages.
type meter struct {
	client *api.Client

	mu    sync.Mutex
	runs  bool
	asked time.Time
	last  rates
}

// now returns the last rates if they are fresh, and keeps the query running.
func (m *meter) now() rates {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked = time.Now(); !m.runs {
		m.runs = true
		go m.run()
	}
	if time.Since(m.last.at) > linger {
		return rates{Note: m.last.Note}
	}
	return m.last
}

// run reads traffic until linger has passed since the last request of a page.
func (m *meter) run() {
	err := m.client.Each(context.Background(), "top", nil, func(raw json.RawMessage) bool {
		var t inspect.Top
		err := json.Unmarshal(raw, &t)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.last = rateOf(&t)
		return err == nil && time.Since(m.asked) <= linger
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.runs = false; err != nil {
		m.last = rates{Note: err.Error()}
	}
}

// rateOf sums the ports of each Service. It adds counters of connections that conntrack does not
// attribute to the Service, such as those of sockets in mode ebpf.
func rateOf(t *inspect.Top) rates {
	r := rates{Services: map[string][2]float64{}, Known: t.MoreFrontends == 0, Note: t.Note, at: time.Now()}
	for _, s := range t.Services {
		name := inspect.ParseName(s.Service).String()
		r.Services[name] = [2]float64{r.Services[name][0] + s.PerSecond}
	}
	for name, c := range t.Counted {
		r.Services[name] = [2]float64{max(c[0], r.Services[name][0]), c[1]}
		r.Counted = r.Counted || c[1] > 0
	}
	if t.AtLeast {
		r.Note = "lower bounds: the kernel has lost messages"
	}
	return r
}

// traffic sends the current rates of Services.
func (h *Handler) traffic(w http.ResponseWriter, r *http.Request) {
	text, _ := json.Marshal(h.meter.now()) // strings and numbers can always be written
	send(w, r, http.StatusOK, "application/json", text)
}
