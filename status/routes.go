package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/component-base/metrics/prometheus/slis"
)

// configName is the name of our configuration in /configz (HT-24).
const configName = "kubeproxy.config.k8s.io"

// mux is a ServeMux that remembers its paths, for /statusz.
type mux struct {
	http.ServeMux
	paths []string
}

// Handle adds a path.
func (m *mux) Handle(path string, h http.Handler) {
	m.ServeMux.Handle(path, h)
	if path != "/" && !strings.HasPrefix(path, "/debug/") {
		m.paths = append(m.paths, path)
	}
}

func (s *Server) routes() http.Handler {
	m := &mux{}
	m.Handle("/healthz", s.orHealth(healthz))
	m.ServeMux.Handle("/livez", s.orHealth(http.NotFound))
	m.ServeMux.Handle("/readyz", s.orHealth(http.NotFound))
	m.Handle("/healthz/ping", http.HandlerFunc(ping))
	m.Handle("/metrics", shared(s.cfg.Metrics.Handler()))
	if !slices.Contains(s.cfg.Off, "/metrics/slis") {
		slis.SLIMetricsWithReset{}.Install(m)
	}
	m.Handle("/proxyMode", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		plain(w, http.StatusOK, s.cfg.Mode)
	}))
	m.Handle("/configz", http.HandlerFunc(s.configz))
	s.debug(m)
	if !slices.Contains(s.cfg.Off, "/flagz") {
		m.Handle("/flagz", s.flagz())
	}
	if !slices.Contains(s.cfg.Off, "/statusz") {
		m.Handle("/statusz", s.statusz(slices.Sorted(slices.Values(append([]string{"/statusz"}, m.paths...)))))
	}
	return m
}

// wholeAnswer is an answer that is not sent yet.
type wholeAnswer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (a *wholeAnswer) Header() http.Header         { return a.header }
func (a *wholeAnswer) WriteHeader(code int)        { a.code = code }
func (a *wholeAnswer) Write(b []byte) (int, error) { return a.body.Write(b) }

// plain answers with a text (HT-23).
func plain(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	io.WriteString(w, text) // the client has closed the connection
}

// checked counts the only check, for /metrics/slis (HT-22).
func checked(r *http.Request) {
	slis.ObserveHealthcheck(r.Context(), "ping", "healthz", slis.Success) // always nil
}

// orHealth passes requests to the health server if it has the same address.
func (s *Server) orHealth(otherwise http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if h := s.cfg.Health(); h != nil {
			h.ServeHTTP(w, r)
			return
		}
		otherwise(w, r)
	}
}

// healthz only shows that this server answers (HT-20). The health port shows whether the proxy is
// healthy.
func healthz(w http.ResponseWriter, r *http.Request) {
	checked(r)
	if _, verbose := r.URL.Query()["verbose"]; verbose {
		plain(w, http.StatusOK, "[+]ping ok\nhealthz check passed\n")
		return
	}
	plain(w, http.StatusOK, "ok")
}

func ping(w http.ResponseWriter, r *http.Request) {
	checked(r)
	plain(w, http.StatusOK, "ok")
}

func (s *Server) configz(w http.ResponseWriter, _ *http.Request) {
	cfg, err := s.cfg.Config()
	if err == nil {
		err = writeJSON(w, "application/json", map[string]any{configName: cfg})
	}
	if err != nil {
		plain(w, http.StatusInternalServerError, fmt.Sprintf("the configuration cannot be shown: %v\n", err))
	}
}

// writeJSON responds with v. If it returns an error, nothing has been written.
func writeJSON(w http.ResponseWriter, contentType string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Write(text) // the client has closed the connection
	return nil
}

// debug adds the routes that require profiling (HT-26).
func (s *Server) debug(m *mux) {
	handle := func(path string, h http.HandlerFunc) {
		m.Handle(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case !s.profiling.Load():
				http.NotFound(w, r)
			case !s.named(r.Host):
				plain(w, http.StatusMisdirectedRequest, "want an IP address, localhost or the node's name as Host\n")
			default:
				h(w, r)
			}
		}))
	}
	handle("/debug/pprof", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/debug/pprof/", http.StatusFound)
	})
	handle("/debug/pprof/", pprof.Index)
	handle("/debug/pprof/profile", pprof.Profile)
	handle("/debug/pprof/symbol", pprof.Symbol)
	handle("/debug/pprof/trace", pprof.Trace)
	handle("/debug/flags/v", s.verbosity)
}

// named reports whether the Host of a request means this server: an IP address, localhost or the
// node's name. A web page whose own name leads here (DNS rebinding) would else read profiles with
// the browser of a user who can reach the port.
func (s *Server) named(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || strings.EqualFold(host, "localhost") || s.cfg.Node != "" && strings.EqualFold(host, s.cfg.Node)
}

// maxVerbosity is the highest verbosity that a request may set.
const maxVerbosity = 1<<31 - 1

// bodyWait is how long a body of a few bytes may take.
const bodyWait = 10 * time.Second

// verbosity sets or returns the verbosity of the log.
func (s *Server) verbosity(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		plain(w, http.StatusOK, strconv.Itoa(s.cfg.Verbosity())+"\n")
	case http.MethodPut:
		// where that cannot be, WriteTimeout ends it
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyWait))
		body, err := io.ReadAll(io.LimitReader(r.Body, 100))
		if err != nil {
			plain(w, http.StatusBadRequest, fmt.Sprintf("the body cannot be read: %v\n", err))
			return
		}
		v, err := strconv.Atoi(strings.TrimSpace(string(body)))
		if err != nil || v < 0 || v > maxVerbosity {
			plain(w, http.StatusBadRequest, fmt.Sprintf("verbosity %q: want an integer from 0\n", body))
			return
		}
		before := s.cfg.Verbosity()
		s.cfg.SetVerbosity(v)
		s.cfg.Log.Info("Changed the log verbosity", "from", before, "to", v, "by", r.RemoteAddr)
		plain(w, http.StatusOK, fmt.Sprintf("successfully set the verbosity to %d\n", v))
	default:
		w.Header().Set("Allow", "GET, HEAD, PUT")
		plain(w, http.StatusMethodNotAllowed, "want GET or PUT\n")
	}
}
