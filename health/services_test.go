package health

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kube-proxy/internal/listen"
	"kube-proxy/lb"
)

// check is a frontend of kind HealthCheck.
func check(service string, port uint16, endpoints int) *lb.Frontend {
	return &lb.Frontend{Key: lb.Key{Port: port, Proto: lb.TCP}, Service: service, Kind: lb.HealthCheck,
		Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Accept}}, LocalEndpoints: endpoints}
}

func set(f *lb.Frontend) []lb.Change { return []lb.Change{{Key: f.Key, New: f}} }

func gone(port uint16) []lb.Change { return []lb.Change{{Key: lb.Key{Port: port, Proto: lb.TCP}}} }

// desk is a Services with its own address.
type desk struct {
	*Services
	addr     netip.Addr
	v4, v6   *Observer
	healthy  atomic.Bool
	reported chan string
}

func newDesk(t testing.TB) *desk {
	d := &desk{addr: lonely(t), reported: make(chan string, 10)}
	d.healthy.Store(true)
	d.Services = newServices(ServicesConfig{
		Healthy:   d.healthy.Load,
		Addresses: func() []netip.Addr { return []netip.Addr{d.addr} },
		OnListenFailed: func(service string, port uint16, err error) {
			d.reported <- fmt.Sprint(service, " ", port, ": ", err)
		},
	})
	d.v4, d.v6 = d.Observer(lb.IPv4), d.Observer(lb.IPv6)
	runServices(t, d.Services)
	return d
}

func runServices(t testing.TB, s *Services) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func (d *desk) at(port uint16) netip.AddrPort { return netip.AddrPortFrom(d.addr, port) }

// awaitPort waits until the port is listened at, or not.
func awaitPort(t testing.TB, at netip.AddrPort, listens bool) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s to be listened at: %t", at, listens), func() bool {
		c, err := net.Dial("tcp", at.String())
		if err != nil {
			return !listens
		}
		return c.Close() == nil && listens
	})
}

const (
	local1 = "{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": "
	local2 = ",\n\t\"serviceProxyHealthy\": "
	local3 = "\n}"
)

// TestServiceAnswers is HT-10 to HT-13: each byte of the answer but its date.
func TestServiceAnswers(t *testing.T) {
	d := newDesk(t)
	const port = 32100
	d.v4.Applied(set(check("shop/web", port, 0)))
	awaitPort(t, d.at(port), true)
	for _, test := range []struct {
		name    string
		v4, v6  int // endpoints; -1 for no frontend
		healthy bool
		code, n int
	}{
		{"none here", 0, -1, true, 503, 0},
		{"some here", 3, -1, true, 200, 3},
		{"some here, but the proxy is not healthy", 3, -1, false, 503, 3},
		{"none, and not healthy", 0, -1, false, 503, 0},
		{"dual stack: a pod has an address in each family", 2, 2, true, 200, 2},
		{"dual stack: one of the pods has only IPv6", 1, 2, true, 200, 2},
		{"dual stack: none in IPv6", 1, 0, true, 200, 1},
		{"IPv6 alone", -1, 1, true, 200, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			d.healthy.Store(test.healthy)
			for o, n := range map[*Observer]int{d.v4: test.v4, d.v6: test.v6} {
				o.Applied(set(check("shop/web", port, max(n, 0)))) // without a frontend the port would close
			}
			if test.v4 < 0 {
				d.v4.Applied(gone(port))
			}
			if test.v6 < 0 {
				d.v6.Applied(gone(port))
			}
			body := fmt.Sprint(local1, test.n, local2, test.healthy, local3)
			for _, req := range []struct {
				method, path string
			}{{"GET", "/"}, {"GET", "/healthz?x=1"}, {"POST", "/a/b"}, {"DELETE", "//"}, {"PROBE", "/"},
				{"OPTIONS", "*"}} {
				want := fmt.Sprintf("HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Length: %d\r\n"+
					"Content-Type: application/json\r\nDate: then\r\n"+
					"X-Content-Type-Options: nosniff\r\nX-Load-Balancing-Endpoint-Weight: %d\r\n\r\n%s", test.code,
					http.StatusText(test.code), len(body), test.n, body)
				if got := raw(t, d.at(port), req.method, req.path); got != want {
					t.Errorf("%s %s: got\n%q\nwant\n%q", req.method, req.path, got, want)
				}
			}
		})
	}
}

// raw returns the whole response, with the header lines in order and without the date.
func raw(t *testing.T, at netip.AddrPort, method, path string) string {
	t.Helper()
	c, err := net.Dial("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", method, path)
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	head, body, _ := strings.Cut(string(b), "\r\n\r\n")
	lines := strings.Split(head, "\r\n")
	for i := range lines {
		if strings.HasPrefix(lines[i], "Date: ") {
			lines[i] = "Date: then"
		}
	}
	slices.Sort(lines[1:])
	return strings.Join(lines, "\r\n") + "\r\n\r\n" + body
}

// HT-14: without restriction one listener answers in both families, and it is closed when both
// frontends are gone.
func TestOneListenerForBothFamilies(t *testing.T) {
	s := newServices(ServicesConfig{OnListenFailed: func(_ string, _ uint16, err error) { t.Error(err) }})
	o := &recorder{open: s.open}
	s.open = o.listen
	runServices(t, s)
	port := freePort(t)
	v4, v6 := s.Observer(lb.IPv4), s.Observer(lb.IPv6)
	v4.Applied(set(check("shop/web", port, 1)))
	v6.Applied(set(check("shop/web", port, 2)))
	for _, host := range []string{"127.0.0.1", "[::1]"} {
		at := netip.MustParseAddrPort(fmt.Sprintf("%s:%d", host, port))
		awaitPort(t, at, true)
		resp, body := get(t, "GET", "http://"+at.String())
		if resp.StatusCode != 200 || body != local1+"2"+local2+"true"+local3 {
			t.Errorf("%s: %d %s", at, resp.StatusCode, body)
		}
	}
	if o.opened.Load() != 1 {
		t.Errorf("%d listeners were opened, want 1", o.opened.Load())
	}
	v4.Applied(gone(port))
	awaitPort(t, netip.MustParseAddrPort(fmt.Sprintf("127.0.0.1:%d", port)), true)
	v6.Applied(gone(port))
	awaitPort(t, netip.MustParseAddrPort(fmt.Sprintf("127.0.0.1:%d", port)), false)
}

// recorder counts opened listeners.
type recorder struct {
	open   func(context.Context, listen.Address) (net.Listener, error)
	opened atomic.Int32
}

func (r *recorder) listen(ctx context.Context, p listen.Address) (net.Listener, error) {
	r.opened.Add(1)
	return r.open(ctx, p)
}

// HT-14: a Service whose port changes answers on the new one, and one that takes the port of
// another answers there.
func TestPortChanges(t *testing.T) {
	d := newDesk(t)
	d.v4.Applied(slices.Concat(set(check("shop/web", 32100, 1)), set(check("shop/old", 32101, 1))))
	awaitPort(t, d.at(32100), true)
	awaitPort(t, d.at(32101), true)
	d.v4.Applied(slices.Concat(gone(32100), set(check("shop/web", 32101, 4)), set(check("shop/old", 32102, 1))))
	awaitPort(t, d.at(32100), false)
	awaitPort(t, d.at(32102), true)
	_, body := get(t, "GET", "http://"+d.at(32101).String())
	if body != local1+"4"+local2+"true"+local3 {
		t.Errorf("the port that was another's says %s", body)
	}
	if len(d.reported) > 0 {
		t.Errorf("reported a failure: %s", <-d.reported)
	}
}

// Only frontends of kind HealthCheck matter, the change's Old does not, and a NodePort takes the
// port.
func TestOtherRows(t *testing.T) {
	d := newDesk(t)
	nodePort := check("shop/web:http", 32100, 0)
	nodePort.Kind, nodePort.Routes = lb.NodePort, []lb.Route{{From: lb.Anywhere, Do: lb.Reject}}
	udp := check("shop/web", 32103, 1)
	udp.Key.Proto = lb.UDP
	vip := check("shop/web", 32104, 1)
	vip.Key.Addr = netip.MustParseAddr("192.0.2.1")
	d.v4.Applied(slices.Concat(set(nodePort), set(udp), set(vip), gone(32105), set(check("shop/web", 32101, 1))))
	awaitPort(t, d.at(32101), true)
	for _, port := range []uint16{32100, 32103, 32104, 32105} {
		awaitPort(t, d.at(port), false)
	}
	taken := *nodePort
	taken.Key.Port = 32101
	d.v4.Applied([]lb.Change{{Key: taken.Key, Old: nodePort, New: &taken}}) // Old is wrong, and no matter
	awaitPort(t, d.at(32101), false)
}

// Two Services with one port, one in each family, which the API server prevents: that of IPv4
// answers, with its own endpoints.
func TestPortOfTwoServices(t *testing.T) {
	d := newDesk(t)
	d.v6.Applied(set(check("shop/other", 32100, 5)))
	awaitPort(t, d.at(32100), true)
	d.v4.Applied(set(check("shop/web", 32100, 0)))
	resp, body := get(t, "GET", "http://"+d.at(32100).String())
	if resp.StatusCode != 503 || body != local1+"0"+local2+"true"+local3 {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	d.v4.Applied(gone(32100))
	if resp, body := get(t, "GET", "http://"+d.at(32100).String()); resp.StatusCode != 200 ||
		!strings.Contains(body, `"other"`) {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// HT-14: a request on a connection that was open when the Service went gets 503 and an end, not an
// empty 200.
func TestRequestAfterTheEnd(t *testing.T) {
	d := newDesk(t)
	d.v4.Applied(set(check("shop/web", 32100, 1)))
	awaitPort(t, d.at(32100), true)
	c, err := net.Dial("tcp", d.at(32100).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r := bufio.NewReader(c)
	for _, want := range []struct {
		code, n int
		close   bool
	}{{200, 1, false}, {503, 0, true}} {
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		body := drain(resp)
		if resp.StatusCode != want.code || resp.Close != want.close || body != fmt.Sprint(local1, want.n, local2, true,
			local3) ||
			resp.Header.Get("X-Load-Balancing-Endpoint-Weight") != fmt.Sprint(want.n) {
			t.Errorf("got %d, close %t, %s\nwant %d, close %t", resp.StatusCode, resp.Close, body, want.code,
				want.close)
		}
		d.v4.Applied(gone(32100))
		awaitPort(t, d.at(32100), false)
	}
}

// HT-14: at any time the response to a request is complete: 200 with endpoints, 503 without, or the
// connection is refused.
func TestRequestsWhileServicesComeAndGo(t *testing.T) {
	d := newDesk(t)
	var clients, writer sync.WaitGroup
	var ok, not, refused atomic.Int64
	stop := make(chan struct{})
	writer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			d.v4.Applied(set(check("shop/web", 32100, i%3)))
			if i%4 == 0 {
				d.v6.Applied(set(check("shop/web", 32100, i%2)))
			}
			time.Sleep(time.Duration(i%5) * 100 * time.Microsecond)
			d.v4.Applied(gone(32100))
			if i%4 == 2 {
				d.v6.Applied(gone(32100))
			}
			if i%50 == 0 {
				d.AddressesChanged()
			}
			d.healthy.Store(i%7 != 0)
		}
	})
	for i := range 4 {
		clients.Go(func() {
			c := &http.Client{Transport: &http.Transport{DisableKeepAlives: i%2 == 0}}
			// Until there were some of each, which on a busy machine may take long.
			begin := time.Now()
			for time.Since(begin) < 500*time.Millisecond || (ok.Load() == 0 || not.Load() == 0) &&
				time.Since(begin) < 30*time.Second {
				resp, err := c.Get("http://" + d.at(32100).String())
				if err != nil {
					refused.Add(1)
					continue
				}
				text := drain(resp)
				var body struct {
					LocalEndpoints      int
					ServiceProxyHealthy bool
				}
				err = json.Unmarshal([]byte(text), &body)
				good := body.LocalEndpoints > 0 && body.ServiceProxyHealthy
				switch {
				case err != nil, good != (resp.StatusCode == 200), !good && resp.StatusCode != 503,
					resp.Header.Get("X-Load-Balancing-Endpoint-Weight") != fmt.Sprint(body.LocalEndpoints):
					t.Errorf("%d %v %q", resp.StatusCode, resp.Header, text)
				case good:
					ok.Add(1)
				default:
					not.Add(1)
				}
			}
		})
	}
	clients.Wait()
	close(stop)
	writer.Wait()
	t.Logf("%d times 200, %d times 503, %d connections refused or reset", ok.Load(), not.Load(), refused.Load())
	if ok.Load() == 0 || not.Load() == 0 {
		t.Error("want some of each")
	}
}

// HT-14, HT-15: all addresses or none; a failure is logged once, and the port answers when it is
// free.
func TestOccupiedHT15(t *testing.T) {
	a, b := lonely(t), lonely(t)
	const port = 32100
	squatter := squat(t, netip.AddrPortFrom(b, port))
	reported := make(chan string, 10)
	s := newServices(ServicesConfig{
		Addresses: func() []netip.Addr { return []netip.Addr{a, b, a} },
		OnListenFailed: func(service string, port uint16, err error) {
			reported <- fmt.Sprintf("%s %d: %v", service, port, err)
		},
	})
	runServices(t, s)
	v4 := s.Observer(lb.IPv4)
	v4.Applied(set(check("shop/web", port, 1)))
	at := netip.AddrPortFrom(b, port)
	if got, want := <-reported, fmt.Sprintf("shop/web 32100: listen tcp4 %s: bind: address already in use",
		at); got != want {
		t.Errorf("reported %q, want %q", got, want)
	}
	awaitPort(t, netip.AddrPortFrom(a, port), false)
	v4.Applied(set(check("shop/web", port, 2))) // a change causes a retry, but no log line
	v4.Applied(set(check("shop/fine", port+1, 1)))
	awaitPort(t, netip.AddrPortFrom(a, port+1), true)
	if err := squatter.Close(); err != nil {
		t.Fatal(err)
	}
	v4.Applied(set(check("shop/web", port, 1)))
	awaitPort(t, netip.AddrPortFrom(a, port), true)
	awaitPort(t, at, true)
	if len(reported) > 0 {
		t.Errorf("reported again: %s", <-reported)
	}
}

// TestListenAddrs is HT-14: where NodePorts answer there health checks do.
func TestListenAddrs(t *testing.T) {
	parse := func(words string) (ps []netip.Prefix, as []netip.Addr) {
		for w := range strings.FieldsSeq(words) {
			if strings.Contains(w, "/") {
				ps = append(ps, netip.MustParsePrefix(w))
			} else {
				as = append(as, netip.MustParseAddr(w))
			}
		}
		return ps, as
	}
	const local = " 127.0.0.1 172.18.0.2 192.0.2.1 ::1 fd00:18::2 fe80::1%eth0 ::ffff:198.51.100.1"
	for prefixes, want := range map[string]string{
		"0.0.0.0/0 ::/0":                         "[0.0.0.0 ::]",
		"0.0.0.0/0":                              "[0.0.0.0]",
		"0.0.0.0/0 fd00:18::/64":                 "[0.0.0.0 fd00:18::2]",
		"172.18.0.2/32 fd00:18::2/128":           "[172.18.0.2 fd00:18::2]",
		"172.18.0.0/16 192.0.2.0/24 172.0.0.0/8": "[172.18.0.2 192.0.2.1]",
		"10.0.0.0/8":                             "[]",
		"fe80::/10 fd00::/8":                     "[fd00:18::2]",
		"":                                       "[]",
		"192.0.2.1/32 ::ffff:10.0.0.0/104 ::/127": "[192.0.2.1 ::1]",
		"198.51.100.0/24":                         "[198.51.100.1]",
	} {
		if got := fmt.Sprint(ListenAddrs(parse(prefixes + local))); got != want {
			t.Errorf("%s: %s, want %s", prefixes, got, want)
		}
	}
}

// Many Services cost little while no client sends requests.
func TestManyServices(t *testing.T) {
	const n = 200
	d := newDesk(t)
	before := memory()
	goroutines := runtime.NumGoroutine()
	for i := range n {
		d.v4.Applied(set(check(fmt.Sprintf("shop/web-%d", i), uint16(20000+i), 1)))
		d.v6.Applied(set(check(fmt.Sprintf("shop/web-%d", i), uint16(20000+i), 1)))
	}
	for i := range n {
		awaitPort(t, d.at(uint16(20000+i)), true)
	}
	eventually(t, "the probes' connections to end", func() bool { return runtime.NumGoroutine() <= goroutines+n })
	each := (memory() - before) / n
	t.Logf("%d bytes and one goroutine for each of %d Services", each, n)
	if each > 20<<10 {
		t.Errorf("%d bytes for each Service", each)
	}
	if len(d.reported) > 0 {
		t.Errorf("reported a failure: %s", <-d.reported)
	}
	_, body := get(t, "GET", "http://"+d.at(20000+n-1).String())
	if !strings.Contains(body, fmt.Sprintf(`"web-%d"`, n-1)) {
		t.Errorf("the last of them says %s", body)
	}
	for i := range n {
		d.v4.Applied(gone(uint16(20000 + i)))
		d.v6.Applied(gone(uint16(20000 + i)))
	}
	for i := range n {
		awaitPort(t, d.at(uint16(20000+i)), false)
	}
	eventually(t, "all goroutines to end", func() bool { return runtime.NumGoroutine() <= goroutines })
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.ports) != 0 {
		t.Errorf("%d ports are remembered", len(d.ports))
	}
}

func memory() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc + m.StackInuse)
}

// Only a change of a health check wakes what opens and closes listeners.
func TestOnlyChangesWake(t *testing.T) {
	s := newServices(ServicesConfig{})
	o, f := s.Observer(lb.IPv4), check("shop/web", 32100, 1)
	for _, c := range []struct {
		name    string
		changes []lb.Change
		wakes   bool
	}{
		{"nothing", nil, false}, {"a port that has none goes", gone(32101), false}, {"a new one", set(f), true},
		{"the same again", set(f), false}, {"it goes", gone(32100), true}, {"it went", gone(32100), false},
	} {
		o.Applied(c.changes)
		if wakes := len(s.wake) > 0; wakes != c.wakes {
			t.Errorf("%s: wakes %t", c.name, wakes)
		}
		select {
		case <-s.wake:
		default:
		}
	}
}
