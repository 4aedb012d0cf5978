package ipvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
)

func command(program string, args ...string) error {
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, out)
	}
	return nil
}

// damageKernel changes a plane's objects in the kernel, as a program with the same rights could.
func damageKernel(b xtables.Backend) func(lb.Family, *rand.Rand) error {
	return func(f lb.Family, rnd *rand.Rand) error {
		conn, err := ipvs.Open()
		if err != nil {
			return err
		}
		defer conn.Close()
		servers, err := serversOf(conn, f)
		if err != nil {
			return err
		}
		if len(servers) == 0 {
			return errors.New("there is no virtual server to damage")
		}
		s := servers[rnd.IntN(len(servers))]
		switch rnd.IntN(6) {
		case 0:
			return conn.Do(context.Background(), []ipvs.Op{{Verb: ipvs.DelService, Service: s}}, nil)
		case 1:
			var ops []ipvs.Op
			all, err := conn.Destinations(context.Background(), s.ServiceID)
			for _, d := range all {
				ops = append(ops, ipvs.Op{Verb: ipvs.DelDestination, Service: s, Destination: d.Destination})
			}
			if err != nil {
				return err
			}
			return conn.Do(context.Background(), ops, nil)
		case 2:
			return command("ipset", "flush", []set{setClusterIP, setMarksAnywhere, setMarksPods,
				setIPs}[rnd.IntN(4)].name(f))
		case 3:
			return command("ip", "-"+strings.TrimPrefix(f.String(), "IPv"), "addr", "flush", "dev", Device)
		case 4:
			return command(programOf(f, b), "-t", "mangle", "-F", chainOrigin)
		default:
			return command(programOf(f, b), "-t", "nat", "-F", chainPostrouting)
		}
	}
}

// wipeKernel removes everything.
func wipeKernel(b xtables.Backend) func(lb.Family) error {
	return func(f lb.Family) error {
		conn, err := ipvs.Open()
		if err != nil {
			return err
		}
		defer conn.Close()
		err = errors.Join(deleteServers(conn, f),
			command("ip", "-"+strings.TrimPrefix(f.String(), "IPv"), "addr", "flush", "dev", Device))
		for _, table := range []string{"mangle", "nat", "filter"} {
			err = errors.Join(err, command(programOf(f, b), "-t", table, "-F"), command(programOf(f, b), "-t", table,
				"-X"))
		}
		for s := range setCount {
			err = errors.Join(err, command("ipset", "destroy", s.name(f)))
		}
		return err
	}
}

// TestKernelVerbs checks each verb against the kernel's state afterwards.
func TestKernelVerbs(t *testing.T) {
	kerneltest.Later(t)
	inVM(t)
	planetest.Verbs(t, realKernel)
}

// TestIPVSTenants adds and removes tenants beside Services of others, and compares the kernel's own
// state (TN-01).
func TestIPVSTenants(t *testing.T) {
	kerneltest.Later(t)
	inVM(t)
	planetest.Tenants(t, 1, func(t testing.TB) planetest.Kernel {
		k := realKernel(t)
		// A namespace without routes accepts no real server.
		for _, args := range [][]string{{"link", "set", "lo", "up"},
			{"link", "add", "lan0", "type", DeviceType}, {"link", "set", "lan0", "up"},
			{"addr", "add", planetest.World{Family: lb.IPv4}.Addr(192, 1).String() + "/32", "dev", "lan0"},
			{"addr", "add", planetest.World{Family: lb.IPv6}.Addr(192, 1).String() + "/128", "dev", "lan0", "nodad"}} {
			must(t, command("ip", args...))
		}
		return k
	})
}

// realKernel is a new network namespace of the test.
func realKernel(t testing.TB) planetest.Kernel {
	netlab.EnterForTest(t)
	var last *whole // of the process before, which has ended when the next one starts
	next := func(f lb.Family, each int) (planetest.Plane, error) {
		if last != nil {
			if err := last.Close(); err != nil {
				return nil, err
			}
		}
		p, err := newWhole(xtables.NFT, f)
		if err != nil {
			return nil, err
		}
		p.step, last = each, p
		return p, nil
	}
	return planetest.Kernel{
		New:    func(f lb.Family) (planetest.Plane, error) { return next(f, step) },
		Slow:   func(f lb.Family) (planetest.Plane, error) { return next(f, 10) },
		Damage: damageKernel(xtables.NFT), Wipe: wipeKernel(xtables.NFT), HealthChecks: true, FirstKeeps: true,
	}
}

// TestKernelTransitions walks at random between the states of all scenarios, and compares the
// kernel's own listing.
func TestKernelTransitions(t *testing.T) {
	kerneltest.Later(t)
	inVM(t)
	cfg := conformance(xtables.NFT)
	create := cfg.New
	cfg.New = func(f lb.Family) (planetest.Plane, error) {
		// Without routes, as before lo is up, a namespace accepts no address of a real server.
		if err := netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 1}}); err != nil {
			return nil, err
		}
		return create(f)
	}
	planetest.Transitions(t, cfg)
}

// TestHistory sends packets to all Services after each step of a node's life.
func TestHistory(t *testing.T) {
	kerneltest.Later(t)
	inVM(t)
	for _, b := range backends {
		t.Run(string(b), func(t *testing.T) {
			cfg := conformance(b)
			cfg.Drift = damageKernel(b)
			planetest.History(t, cfg)
		})
	}
}

// shopRows returns the frontends of a Service with a cluster IP, a NodePort, and a load balancer
// whose external policy is Local, so that pods and the node use other routes than other clients;
// pods are the serving ones.
func shopRows(pods []lb.Backend) (lb.Owner, []*lb.Frontend) {
	const service = "shop/web:http"
	set := func(s lb.Scope, all []lb.Backend) *lb.BackendSet {
		return &lb.BackendSet{ID: lb.SetID{Service: service, Proto: lb.TCP, Scope: s}, Backends: lb.BackendsOf(all...)}
	}
	var local []lb.Backend
	for _, p := range pods {
		if p.Local {
			local = append(local, p)
		}
	}
	cluster := set(lb.Cluster, pods)
	row := func(k lb.Key, kind lb.Kind, routes ...lb.Route) *lb.Frontend {
		k.Proto = lb.TCP
		return &lb.Frontend{Key: k, Service: service, Kind: kind, Routes: routes}
	}
	return lb.Owner{Name: "shop/web"}, []*lb.Frontend{
		row(lb.Key{Addr: netip.MustParseAddr("10.96.0.10"), Port: 80}, lb.ClusterIP,
			lb.Route{From: lb.Pods, Do: lb.Balance, To: cluster}, lb.Route{From: lb.Anywhere, Do: lb.Balance,
				Masq: true, To: cluster}),
		row(lb.Key{Port: 30080}, lb.NodePort, lb.Route{From: lb.Anywhere, Do: lb.Balance, Masq: true, To: cluster}),
		row(lb.Key{Addr: netip.MustParseAddr("192.0.2.10"), Port: 80}, lb.LoadBalancer,
			lb.Route{From: lb.Pods, Do: lb.Balance, To: cluster}, lb.Route{From: lb.Host, Do: lb.Balance, Masq: true,
				To: cluster}, lb.Route{From: lb.Anywhere, Do: lb.Balance, To: set(lb.Local, local)}),
	}
}

// twoPods are pod1 and pod4.
var twoPods = []lb.Backend{{Addr: netip.MustParseAddrPort("10.1.1.11:8080"), Local: true},
	{Addr: netip.MustParseAddrPort("10.1.2.14:8080")}}

// While endpoints are added and removed ten thousand times, beside changes of other Services, no
// client is refused or waits for a second SYN. Open connections continue, though their endpoint
// leaves and returns (DP-34).
func TestNoClientIsRefused(t *testing.T) {
	kerneltest.Every(t)
	inVM(t)
	changes := 10_000
	if testing.Short() && os.Getenv("PLANETEST_CORE") != "" {
		changes = 1000
	}
	lab := netlab.ForTest(t, netlab.Options{})
	lab.Serve(netlab.TCP, 8080, "pod1", "pod2", "pod4", "pod5")
	var all []lb.Backend
	for _, p := range []string{"10.1.1.11", "10.1.1.12", "10.1.2.14", "10.1.2.15"} {
		all = append(all, lb.Backend{Addr: netip.AddrPortFrom(netip.MustParseAddr(p), 8080),
			Local: strings.HasPrefix(p, "10.1.1.")})
	}
	table, vip, nodePort := planetest.Shop(lb.IPv4)
	ctx, rnd, w := t.Context(), rand.New(rand.NewPCG(1, 2)), planetest.World{Family: lb.IPv4}
	lab.On("node1", func() {
		p := wholeForTest(t, xtables.NFT, lb.IPv4)
		table.Replace(shopRows(all))
		must(t, only(planetest.ResetAll(ctx, p, table)))
		balancer := netip.MustParseAddrPort("192.0.2.10:80")
		// IPVS confuses two connections from one client port to one real server (docs/ipvs.md).
		traffic := lab.Traffic(netlab.Way{From: "pod3", To: vip, Seen: "pod3", Port: 20000},
			netlab.Way{From: "client", To: nodePort, Seen: "node1", Port: 20000},
			netlab.Way{From: "node1", To: vip}, netlab.Way{From: "client", To: balancer, Seen: "client", Port: 22000},
			netlab.Way{From: "pod3", To: balancer, Seen: "pod3", Port: 22000})
		for i := range changes {
			// At least one local endpoint, and any others.
			some := []lb.Backend{all[i%2]}
			for _, b := range all {
				if b != some[0] && rnd.IntN(2) == 0 {
					some = append(some, b)
				}
			}
			slices.SortFunc(some, func(a, b lb.Backend) int { return a.Addr.Compare(b.Addr) })
			todo, _ := table.Replace(shopRows(some))
			if n := rnd.IntN(20); rnd.IntN(4) == 0 {
				more, _ := table.Replace(w.ClusterIP(n, rnd.IntN(100), rnd.IntN(3)))
				todo = append(todo, more...)
			}
			if _, err := p.Apply(ctx, todo); err != nil {
				t.Fatalf("change %d: %v", i, err)
			}
			if i%(changes/10) == 0 {
				traffic.More()
			}
		}
		traffic.More()
		traffic.Stop()
	})
}

// The node answers a ping of a service address (SV-66). The port of a health check is open there,
// for the balancers that query it (DP-08).
func TestServicesOfTheHost(t *testing.T) {
	kerneltest.Every(t)
	inVM(t)
	for _, b := range backends {
		t.Run(string(b), func(t *testing.T) {
			lab := netlab.ForTest(t, netlab.Options{})
			lab.Serve(netlab.TCP, 30000, "node1")
			for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
				table, vip, _ := planetest.Shop(f)
				table.Replace(lb.Owner{Name: "shop/web-check"},
					[]*lb.Frontend{{Key: lb.Key{Port: 30000, Proto: lb.TCP}, Service: "shop/web", Kind: lb.HealthCheck,
						Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Accept}}}})
				lab.On("node1", func() {
					p := wholeForTest(t, b, f)
					must(t, only(planetest.ResetAll(t.Context(), p, table)))
				})
				for _, from := range []string{"client", "pod3", "node1"} {
					if err := lab.Ping(from, vip.Addr(), 0); err != nil {
						t.Errorf("%s pings %s: %v", from, vip.Addr(), err)
					}
					check := netip.AddrPortFrom(vip.Addr(), 30000)
					if _, err := lab.Dial(from, netlab.TCP, check, netlab.DialOptions{}); err != nil {
						t.Errorf("%s → %s, a health check: %v", from, check, err)
					}
				}
			}
		})
	}
}

// A SYN that conntrack considers invalid, such as one with FIN, does not pass source ranges: IPVS
// would create a connection for it (SV-61).
func TestInvalidPacketsKeepToSourceRanges(t *testing.T) {
	kerneltest.Every(t)
	inVM(t)
	for _, b := range backends {
		t.Run(string(b), func(t *testing.T) {
			lab := netlab.ForTest(t, netlab.Options{})
			balancer, client := netip.MustParseAddrPort("192.0.2.10:80"), netip.MustParseAddr("172.18.0.100")
			all := []lb.Backend{{Addr: netip.MustParseAddrPort("10.1.1.11:8080"), Local: true}}
			lab.On("node1", func() {
				p := wholeForTest(t, b, lb.IPv4)
				table, _, _ := planetest.Shop(lb.IPv4)
				for _, let := range []bool{false, true} {
					sources := []netip.Prefix{netip.MustParsePrefix("10.1.1.13/32")}
					if let {
						sources = append(sources, netip.PrefixFrom(client, 32))
					}
					owner, fronts := shopRows(all)
					fronts[2].Sources = sources
					table.Replace(owner, fronts)
					must(t, only(planetest.ResetAll(t.Context(), p, table)))
					must(t, lab.Do("client", func() error { return sendSYNFIN(client, balancer) }))
					there := false
					for range 100 { // the same wait applies to a packet that must not arrive
						there = there || strings.Contains(mustRun(t, "", "ipvsadm", "-Lcn"),
							client.String())
						if there {
							break
						}
						time.Sleep(10 * time.Millisecond)
					}
					if there != let {
						t.Errorf("from %v: IPVS has a connection: %v", sources, there)
					}
				}
			})
		})
	}
}

// sendSYNFIN sends a TCP packet with SYN and FIN.
func sendSYNFIN(from netip.Addr, to netip.AddrPort) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	p := make([]byte, 20)
	binary.BigEndian.PutUint16(p[0:], 40000)
	binary.BigEndian.PutUint16(p[2:], to.Port())
	p[12], p[13] = 5<<4, 0x03
	binary.BigEndian.PutUint16(p[14:], 1024)
	sum := uint32(unix.IPPROTO_TCP + len(p))
	for _, part := range [][]byte{from.AsSlice(), to.Addr().AsSlice(), p} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(p[16:], ^uint16(sum))
	return unix.Sendto(fd, p, 0, &unix.SockaddrInet4{Addr: to.Addr().As4()})
}

// Real connections count once for their service port, whichever virtual server they use: by
// address, at each address of a NodePort, by the mark of their origin, with or without affinity.
// Another process starts with later connections.
func TestKernelCounters(t *testing.T) {
	kerneltest.Every(t)
	inVM(t)
	lab := netlab.ForTest(t, netlab.Options{})
	lab.Serve(netlab.TCP, 8080, "pod1", "pod4")
	lab.Serve(netlab.UDP, 8080, "pod1", "pod4")
	table, vip, nodePort := planetest.Shop(lb.IPv4)
	table.Replace(shopRows(twoPods))
	balancer, dns := netip.MustParseAddrPort("192.0.2.10:80"), netip.MustParseAddrPort("10.96.0.53:53")
	table.Replace(lb.Owner{Name: "shop/dns"},
		[]*lb.Frontend{{Key: lb.Key{Addr: dns.Addr(), Port: dns.Port(), Proto: lb.UDP}, Service: "shop/dns",
			Kind: lb.ClusterIP, Affinity: time.Hour, Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, Masq: true,
				To: &lb.BackendSet{ID: lb.SetID{Service: "shop/dns", Proto: lb.UDP, Scope: lb.Cluster},
					Backends: lb.BackendsOf(twoPods...)}}}}})
	service := table.Get(lb.Key{Addr: vip.Addr(), Port: vip.Port(), Proto: lb.TCP}).Service
	lab.On("node1", func() {
		for round := range 2 {
			p := wholeForTest(t, xtables.NFT, lb.IPv4)
			reads, err := ipvs.Open()
			must(t, err)
			defer reads.Close()
			p.cfg.Counters, p.counters.on = reads, true
			must(t, only(planetest.ResetAll(t.Context(), p, table)))
			want := map[string]uint64{}
			dial := func(port, from string, proto netlab.Proto, to netip.AddrPort) {
				t.Helper()
				if _, err := lab.Dial(from, proto, to, netlab.DialOptions{}); err != nil {
					t.Fatalf("%s to %s: %v", from, to, err)
				}
				want[port]++
			}
			for range 5 {
				dial(service, "pod3", netlab.TCP, vip)
				dial(service, "node1", netlab.TCP, vip)
				dial(service, "client", netlab.TCP, nodePort)
				dial(service, "client", netlab.TCP, balancer)
				dial(service, "pod3", netlab.TCP, balancer)
				dial(service, "node1", netlab.TCP, balancer)
				dial("shop/dns", "pod3", netlab.UDP, dns)
			}
			// The kernel adds up every two seconds; afterwards the sum stays.
			for end, equal := time.Now().Add(time.Minute), 0; equal < 2; {
				got := planetest.Counted(t, p.Plane)
				if maps.Equal(got, want) {
					equal++
				} else if time.Now().After(end) || equal > 0 {
					t.Fatalf("process %d: %v, want %v", round, got, want)
				}
				<-time.After(200 * time.Millisecond)
			}
			// A TCP connection has at least three packets of 40 bytes, a UDP exchange two of 28.
			for port, bytes := range bytesOf(t, p.Plane) {
				if bytes < want[port]*56 {
					t.Errorf("process %d: %s has %d bytes in %d connections", round, port, bytes, want[port])
				}
			}
		}
	})
}
