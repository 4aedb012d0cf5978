package selftest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kube-proxy/plane/hns"
	"kube-proxy/test/hnsfake"
)

// wires connect the node and its servers as the fake resolves packets; HTTP servers of this machine
// replace pods.
type wires struct {
	t       *testing.T
	hns     *hnsfake.Fake
	servers map[netip.AddrPort]string // the address that represents an echo's
	here    map[netip.Addr]bool       // pods of this node
	alter   func(hnsfake.Verdict) hnsfake.Verdict

	mu      sync.Mutex
	dials   int
	clients map[string]netip.Addr // by the local address of the connection
}

var nodeAddr = netip.MustParseAddr("172.18.0.2")

// echo makes an echo, as `agnhost netexec` is one.
func (w *wires) echo(at string, here bool) {
	addr := netip.MustParseAddrPort(at)
	mux := http.NewServeMux()
	mux.HandleFunc("/hostname", func(out http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(out, "echo-"+addr.Addr().String())
	})
	mux.HandleFunc("/clientip", func(out http.ResponseWriter, in *http.Request) {
		w.mu.Lock()
		defer w.mu.Unlock()
		fmt.Fprint(out, netip.AddrPortFrom(w.clients[in.RemoteAddr], 40000))
	})
	mux.HandleFunc("/dial", func(out http.ResponseWriter, in *http.Request) {
		q := in.URL.Query()
		from := hnsfake.Outside
		if here {
			from = hnsfake.Pod
		}
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(_ context.Context,
			_, to string) (net.Conn, error) {
			return w.dial(from, addr.Addr(), to)
		}}}
		text, err := read(client.Get("http://" + net.JoinHostPort(q.Get("host"), q.Get("port")) + "/" +
			q.Get("request")))
		answer := map[string][]string{"responses": {text}}
		if err != nil {
			answer = map[string][]string{"errors": {err.Error()}}
			out.WriteHeader(http.StatusExpectationFailed)
		}
		_ = json.NewEncoder(out).Encode(answer)
	})
	server := httptest.NewServer(mux)
	w.t.Cleanup(server.Close)
	w.servers[addr], w.here[addr.Addr()] = server.Listener.Addr().String(), here
}

// dial connects as a packet of a source would: by a load balancer, or straight.
func (w *wires) dial(from hnsfake.Source, client netip.Addr, address string) (net.Conn, error) {
	to := netip.MustParseAddrPort(address)
	seen := client
	v := w.hns.State().Resolve(hnsfake.Packet{From: from, To: to, Proto: 6, ToNode: to.Addr() == nodeAddr})
	if w.alter != nil {
		v = w.alter(v)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if v.LoadBalancer != "" {
		if len(v.Backends) == 0 {
			return nil, fmt.Errorf("no backend of %s", address)
		}
		if to = v.Backends[w.dials%len(v.Backends)]; v.Sticky {
			to = v.Backends[0]
		}
		if !v.Kept {
			seen = nodeAddr
		}
	}
	w.dials++
	c, err := net.Dial("tcp", w.servers[to])
	if err == nil {
		w.clients[c.LocalAddr().String()] = seen
	}
	return c, err
}

// onWires gives the test three echoes: a pod of this node, one of another, and another node.
func onWires(t *testing.T, timeout time.Duration, alter func(hnsfake.Verdict) hnsfake.Verdict) func(*hnsfake.Fake,
	string, *Config) {
	return func(f *hnsfake.Fake, network string, cfg *Config) {
		cfg.Timeout = timeout
		w := &wires{t: t, hns: f, servers: map[netip.AddrPort]string{}, here: map[netip.Addr]bool{},
			clients: map[string]netip.Addr{}, alter: alter}
		for _, at := range []string{"10.1.1.11:8080", "10.1.2.14:8080", "172.18.0.3:8080"} {
			w.echo(at, at == "10.1.1.11:8080")
			cfg.Echo = append(cfg.Echo, netip.MustParseAddrPort(at))
		}
		f.AddPod(network, "pod1", netip.MustParseAddr("10.1.1.11"))
		f.SetServices(netip.PrefixFrom(vip, 24))
		f.SetNetwork(network, func(n *hns.Network) {
			settings, _ := json.Marshal(hns.RemoteSubnet{DestinationPrefix: "10.1.2.0/24",
				ProviderAddress: "172.18.0.3"})
			n.Policies = append(n.Policies, hns.Policy{Type: hns.PolicyRemoteSubnetRoute, Settings: settings})
		})
		cfg.Dial = func(_ context.Context, _, address string) (net.Conn, error) {
			return w.dial(hnsfake.Host, nodeAddr, address)
		}
	}
}

// All of step 7 passes on an HNS that behaves as documented: the node and its pods reach each
// backend by a frontend, a pod also itself; other clients reach them by a NodePort; policy Local,
// affinity and open connections work (WN-03).
func TestDataPath(t *testing.T) {
	for _, typ := range []hns.NetworkType{hns.L2Bridge, hns.Overlay} {
		want := hnsfake.Assumed("26100")
		lines, ok, f := on(t.Context(), t, want, typ, onWires(t, time.Minute, nil))
		if !ok {
			t.Errorf("%s: failed: %v", typ, failed(lines))
		}
		got := factsOf(t, lines)
		if got.HostReachesVIP != want.HostReachesVIP || got.VIPEndpoint != (typ == hns.Overlay && want.VIPEndpoint) {
			t.Errorf("%s: the node reaches VIPs %t, pods need an endpoint %t", typ, got.HostReachesVIP, got.VIPEndpoint)
		}
		if left := f.Own(); strings.Contains(left, "198.51.100.") {
			t.Errorf("%s: it leaves\n%s", typ, left)
		}
		var names []string
		for _, l := range lines {
			if l.Step == 7 {
				names = append(names, l.Name)
			}
		}
		for _, want := range []string{
			"frontend/node/echo-10.1.1.11", "frontend/node/echo-10.1.2.14", "frontend/node/echo-172.18.0.3",
			"frontend/echo-10.1.1.11/echo-10.1.1.11",
			"frontend/echo-10.1.1.11/echo-10.1.2.14", "frontend/echo-10.1.1.11/echo-172.18.0.3",
			"node-port/node/echo-10.1.2.14",
			"node-port/echo-172.18.0.3/echo-10.1.1.11", "client-address/echo-10.1.2.14/echo-10.1.1.11", "balanced",
			"affinity", "open-connection",
		} {
			if !slices.Contains(names, want) {
				t.Errorf("%s: no line %q in %v", typ, want, names)
			}
		}
	}
}

// Each claim of step 7 can fail (WN-03).
func TestDataPathFails(t *testing.T) {
	for name, c := range map[string]struct {
		alter  func(hnsfake.Verdict) hnsfake.Verdict
		failed []string // prefixes
	}{
		"takes nothing": {func(v hnsfake.Verdict) hnsfake.Verdict { v.Backends = nil; return v },
			[]string{"frontend/node/", "frontend/echo-", "node-port/node/", "node-port/echo-", "client-address/",
				"balanced", "affinity", "open-connection"}},
		"hides clients": {func(v hnsfake.Verdict) hnsfake.Verdict { v.Kept = false; return v },
			[]string{"client-address/"}},
		"forgets":     {func(v hnsfake.Verdict) hnsfake.Verdict { v.Sticky = false; return v }, []string{"affinity"}},
		"prefers one": {func(v hnsfake.Verdict) hnsfake.Verdict { v.Sticky = true; return v }, []string{"balanced"}},
	} {
		t.Run(name, func(t *testing.T) {
			lines, _, _ := on(t.Context(), t, hnsfake.Assumed("26100"), hns.Overlay,
				onWires(t, 300*time.Millisecond, c.alter))
			got := failed(lines)
			for _, want := range c.failed {
				if !slices.ContainsFunc(got, func(f string) bool { return strings.HasPrefix(f, want) }) {
					t.Errorf("%s does not fail, but %v", want, got)
				}
			}
		})
	}
}
