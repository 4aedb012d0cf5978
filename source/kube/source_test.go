package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kube-proxy/cluster"
	"kube-proxy/source/convert"
	"kube-proxy/test/logtest"
)

func testService(name string, port int32) *core.Service {
	return &core.Service{
		TypeMeta:   metav1.TypeMeta{Kind: "Service", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: core.ServiceSpec{ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"},
			IPFamilies: []core.IPFamily{core.IPv4Protocol}, Ports: []core.ServicePort{{Port: port}}},
	}
}

func testSlice(service, name string, addrs ...string) *discovery.EndpointSlice {
	s := &discovery.EndpointSlice{
		TypeMeta: metav1.TypeMeta{Kind: "EndpointSlice", APIVersion: "discovery.k8s.io/v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name,
			Labels: map[string]string{discovery.LabelServiceName: service}},
		AddressType: discovery.AddressTypeIPv4,
		Ports:       []discovery.EndpointPort{{Name: new(""), Port: new(int32(8080))}},
	}
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, discovery.Endpoint{Addresses: []string{a}})
	}
	return s
}

func testNode(name, ip string) *core.Node {
	return &core.Node{
		TypeMeta:   metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     core.NodeStatus{Addresses: []core.NodeAddress{{Type: core.NodeInternalIP, Address: ip}}},
	}
}

func testCIDR(cidr string) *networking.ServiceCIDR {
	return &networking.ServiceCIDR{
		TypeMeta:   metav1.TypeMeta{Kind: "ServiceCIDR", APIVersion: "networking.k8s.io/v1"},
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networking.ServiceCIDRSpec{CIDRs: []string{cidr}},
	}
}

// rig runs a Source against a test server into a Store.
type rig struct {
	t     *testing.T
	api   *apiServer
	store *cluster.Store
	log   logtest.Buffer

	mu       sync.Mutex
	problems []convert.Problem
	lists    int // complete lists of services and slices
	least    int // fewer Services than this are a dip
	dips     []string
}

func newRig(t *testing.T) *rig {
	return &rig{t: t, api: newAPIServer(t), store: cluster.NewStore("n1")}
}

func (r *rig) config() Config {
	return Config{Master: "http://" + serverAddr, NodeName: "n1", Dial: r.api.dial,
		Log: slog.New(slog.NewTextHandler(&r.log, nil)), OnProblem: func(p convert.Problem) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.problems = append(r.problems, p)
		}}
}

func (r *rig) start() *Source { return r.startWith(r.config()) }

func (r *rig) startWith(cfg Config) *Source {
	r.t.Helper()
	src, err := New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.run(src)
	return src
}

func (r *rig) run(src *Source) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- src.Run(ctx, r.fold) }()
	r.t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				r.t.Error(err)
			}
		case <-time.After(time.Minute):
			r.t.Error("Run does not end")
		}
	})
}

func (r *rig) fold(ev cluster.Event) {
	r.store.Fold(ev)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch ev.(type) {
	case cluster.ServicesListed, cluster.SlicesListed:
		r.lists++
	}
	if n := len(r.store.Names()); n < r.least {
		r.dips = append(r.dips, fmt.Sprintf("%T left %d services", ev, n))
	}
}

func (r *rig) require(least int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.least = least
}

func (r *rig) noDips() {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.dips) > 0 {
		r.t.Errorf("services were away: %v", r.dips)
	}
}

func (r *rig) listCount() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lists
}

// state prints what the store knows: "web:80→10.1.0.5,10.1.0.6 node:192.0.2.1 cidr:10.96.0.0/16".
func (r *rig) state() string {
	var out []string
	names := r.store.Names()
	slices.SortFunc(names, func(a, b cluster.Name) int { return strings.Compare(a.Name, b.Name) })
	for _, n := range names {
		v := r.store.View(n)
		text := n.Name
		for _, p := range v.Service.Ports {
			text += fmt.Sprint(":", p.Port)
		}
		var addrs []string
		for _, s := range v.Slices {
			for e := range s.Endpoints.All() {
				addrs = append(addrs, e.Addr.String())
			}
		}
		slices.Sort(addrs)
		out = append(out, strings.TrimSuffix(text+"→"+strings.Join(addrs, ","), "→"))
	}
	f := r.store.Facts()
	if f.Node != nil {
		out = append(out, "node:"+f.Node.Addrs[0].String())
	}
	for _, c := range f.CIDRs {
		out = append(out, "cidr:"+c.String())
	}
	return strings.Join(out, " ")
}

func (r *rig) wait(want string) {
	r.t.Helper()
	r.until(func() bool { return r.state() == want }, func() string {
		return fmt.Sprintf("state %q, want %q\nlog:\n%s", r.state(), want, strings.Join(r.log.Lines(""), "\n"))
	})
}

func (r *rig) waitLog(part string) {
	r.t.Helper()
	r.until(func() bool { return len(r.log.Lines(part)) > 0 }, func() string {
		return fmt.Sprintf("no %q in the log:\n%s", part, strings.Join(r.log.Lines(""), "\n"))
	})
}

// patience is less than the longest pause of client-go alone, half a minute.
const patience = 25 * time.Second

func (r *rig) until(ok func() bool, message func() string) {
	r.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatal(message())
		}
	}
}

// withServer runs a test with a server and a clock of its own, in which names cannot be resolved.
func withServer(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(t, newRig(t)) })
}

// eachList runs a test with servers that stream lists and that do not, in both encodings.
func eachList(t *testing.T, test func(t *testing.T, r *rig)) {
	for _, watchList := range []bool{true, false} {
		for _, json := range []bool{true, false} {
			t.Run(fmt.Sprintf("watchList=%v json=%v", watchList, json), func(t *testing.T) {
				withServer(t, func(t *testing.T, r *rig) {
					r.api.watchList, r.api.json = watchList, json
					test(t, r)
				})
			})
		}
	}
}

// Whatever the server supports, objects that exist, come, change, lose their selection and go are
// followed.
func TestFollow(t *testing.T) {
	eachList(t, func(t *testing.T, r *rig) {
		other := testService("other", 1)
		other.Labels = map[string]string{convert.LabelProxyName: "someone"}
		r.api.put(testService("web", 80), other, testSlice("web", "web-1", "10.1.0.5"),
			testNode("n1", "192.0.2.1"), testNode("n2", "192.0.2.2"), testCIDR("10.96.0.0/16"))
		r.start()
		r.wait("web:80→10.1.0.5 node:192.0.2.1 cidr:10.96.0.0/16")
		if lists := r.api.asked("/services?", "limit"); (lists == 0) != r.api.watchList {
			t.Errorf("%d lists", lists)
		}
		if at := fmt.Sprint(r.store.Facts().APIServers); at != "["+serverAddr+"]" {
			t.Errorf("the API server is at %s", at)
		}
		// SV-01: the selection is the server's.
		r.api.put(testService("api", 90))
		r.wait("api:90 web:80→10.1.0.5 node:192.0.2.1 cidr:10.96.0.0/16")
		r.api.put(testSlice("web", "web-1", "10.1.0.6"), testSlice("web", "web-2", "10.1.0.7"))
		r.wait("api:90 web:80→10.1.0.6,10.1.0.7 node:192.0.2.1 cidr:10.96.0.0/16")
		r.api.put(testService("web", 81), testNode("n1", "192.0.2.9"))
		r.wait("api:90 web:81→10.1.0.6,10.1.0.7 node:192.0.2.9 cidr:10.96.0.0/16")
		labelled := testService("web", 81)
		labelled.Labels = map[string]string{convert.LabelProxyName: "someone"}
		r.api.put(labelled)
		r.wait("api:90 node:192.0.2.9 cidr:10.96.0.0/16")
		r.api.put(testService("web", 82))
		r.wait("api:90 web:82→10.1.0.6,10.1.0.7 node:192.0.2.9 cidr:10.96.0.0/16")
		r.api.remove("services", "shop/api")
		r.api.remove("endpointslices", "shop/web-2")
		r.api.remove("nodes", "/n1")
		r.api.remove("servicecidrs", "/kubernetes")
		r.wait("web:82→10.1.0.6 node:192.0.2.9") // what a Node said stays in force when it goes
		for _, bad := range []string{"ERROR", "WARN"} {
			if lines := r.log.Lines("level=" + bad); len(lines) > 0 {
				t.Errorf("log: %v", lines)
			}
		}
	})
}

// An API server that goes away and comes back: nothing is removed meanwhile, what changed is there
// within seconds, and the log has one line for the beginning and one for the end.
func TestOutage(t *testing.T) {
	withServer(t, func(t *testing.T, r *rig) {
		r.api.put(testService("web", 80), testService("api", 90))
		src := r.start()
		r.wait("api:90 web:80")
		r.require(2)
		if !src.Connected() {
			t.Error("it says that the API server is not followed")
		}
		r.api.down()
		r.waitLog("cannot be reached")
		if src.Connected() {
			t.Error("it says that the API server is followed")
		}
		time.Sleep(2 * time.Second)
		r.wait("api:90 web:80")
		r.require(1)
		r.api.remove("services", "shop/api")
		r.api.put(testService("web", 81))
		r.api.up()
		r.wait("web:81")
		r.waitLog("answers again")
		if !src.Connected() {
			t.Error("it does not say that the API server is followed again")
		}
		r.noDips()
		for _, part := range []string{"cannot be reached", "answers again"} {
			if lines := r.log.Lines(part); len(lines) != 1 {
				t.Errorf("%d lines:\n%s", len(lines), strings.Join(lines, "\n"))
			}
		}
	})
}

// While the API server is away, client-go sleeps for seconds between two attempts, whatever becomes
// of the context: the end of the process does not wait for that, and no event follows
// once Run has returned.
func TestEndsWhileDown(t *testing.T) {
	withServer(t, func(t *testing.T, r *rig) {
		r.api.down()
		src, err := New(r.config())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := false
		go func() {
			err = src.Run(ctx, func(ev cluster.Event) {
				if ctx.Err() != nil {
					t.Errorf("%T after the end", ev)
				}
			})
			ended = true
		}()
		time.Sleep(2 * time.Second) // the pauses are of a second and more now
		cancel()
		synctest.Wait()
		if !ended || err != nil {
			t.Errorf("ended at once: %t, %v", ended, err)
		}
		r.api.put(testService("web", 80))
		r.api.up()
		time.Sleep(time.Minute)
	})
}

// 410 Gone: the history was compacted while the streams were broken. Everything is listed again.
func TestGone(t *testing.T) {
	eachList(t, func(t *testing.T, r *rig) {
		r.api.put(testService("web", 80), testService("api", 90))
		r.start()
		r.wait("api:90 web:80")
		r.require(1)
		r.until(func() bool { return r.listCount() == 2 }, func() string { return "no lists" })
		r.api.down()
		r.api.remove("services", "shop/api")
		r.api.put(testService("web", 81))
		r.api.set(func() { r.api.compacted = r.api.rv })
		r.api.up()
		r.wait("web:81")
		r.noDips()
		if r.listCount() < 3 {
			t.Error("nothing was listed again")
		}
	})
}

// An older copy of the data: the state becomes that of the copy, whether the server refuses
// versions of the future or is silent about them.
func TestOlderCopy(t *testing.T) {
	for _, silent := range []bool{true, false} {
		t.Run(fmt.Sprintf("silent=%v", silent), func(t *testing.T) {
			eachList(t, func(t *testing.T, r *rig) {
				r.api.silent = silent
				r.api.put(testService("web", 80), testService("api", 90))
				restore := r.api.backup()
				r.start()
				r.wait("api:90 web:80")
				for i := range int32(20) {
					r.api.put(testService("new", 1+i))
				}
				r.api.remove("services", "shop/api")
				r.wait("new:20 web:80")
				r.require(1)
				r.api.down()
				restore()
				r.api.put(testService("web", 81))
				r.api.up()
				r.wait("api:90 web:81")
				r.api.put(testService("web", 82))
				r.wait("api:90 web:82")
				r.noDips()
			})
		})
	}
}

// The server returns with an older copy, refuses Services, and is lost again. Once the leader has
// read that copy, Services are listed once, without the version that the server has not reached,
// and to the end, though the leader doubts them a second time.
func TestOlderCopyTwice(t *testing.T) {
	eachList(t, func(t *testing.T, r *rig) {
		for i := range 50 {
			r.api.put(testService(fmt.Sprint("s", i), 80))
		}
		restore := r.api.backup()
		r.start()
		r.until(func() bool { return len(r.store.Names()) == 50 }, func() string { return "no list" })
		r.api.remove("services", "shop/s0")
		r.until(func() bool { return len(r.store.Names()) == 49 }, func() string { return "s0 is there" })
		var lost string
		r.api.set(func() { lost = fmt.Sprint("resourceVersion=", r.api.rv) })
		asked := r.api.asked("/services?")
		r.api.down()
		restore()
		r.api.set(func() {
			r.api.answer = func(req *http.Request) *metav1.Status {
				if resourceOf(req) != "services" {
					return nil
				}
				return failure(500, metav1.StatusReasonInternalError, "no")
			}
		})
		r.api.up()
		r.until(func() bool { return r.api.asked("/services?") > asked+2 }, func() string { return "no retries" })
		leads := r.api.asked("/nodes?")
		r.api.down()
		r.api.up()
		r.until(func() bool { return r.api.asked("/nodes?") > leads }, func() string { return "the leader is away" })
		time.Sleep(time.Second) // for its answer
		lists, paged := r.listCount(), r.api.asked("/services?", "limit=500")
		before := r.api.asked("/services?", lost) // streams do not wait for the leader
		r.api.set(func() { r.api.answer = nil })
		r.until(func() bool { return len(r.store.Names()) == 50 }, func() string { return "s0 is missing" })
		if n := r.api.asked("/services?", lost) - before; n > 0 {
			t.Errorf("%d requests from the version that the server has not reached", n)
		}
		paged = r.api.asked("/services?", "limit=500") - paged
		if paged > 0 && r.api.watchList || r.listCount() != lists+1 {
			t.Errorf("%d lists, and %d streams were not read to the end", r.listCount()-lists, paged)
		}
	})
}

// A list that breaks off is no list.
func TestInterruptedList(t *testing.T) {
	eachList(t, func(t *testing.T, r *rig) {
		r.api.cut = 1500
		for i := range 20 {
			r.api.put(testService(fmt.Sprint("s", i), 80), testSlice("web", fmt.Sprint("web-", i), "10.1.0.5"))
		}
		r.start()
		r.until(func() bool { return r.api.asked("/services") >= 4 }, func() string { return "no retries" })
		if r.listCount() > 0 || len(r.store.Names()) > 0 {
			t.Errorf("%d lists, %d services", r.listCount(), len(r.store.Names()))
		}
		r.api.set(func() { r.api.cut = 0 })
		r.until(func() bool { return len(r.store.Names()) == 20 && r.store.Synced() },
			func() string { return "no list" })
	})
}

// Paged lists: one event for all pages.
func TestPages(t *testing.T) {
	withServer(t, func(t *testing.T, r *rig) {
		r.api.watchList, r.api.page = false, 7
		for i := range 20 {
			r.api.put(testService(fmt.Sprint("s", i), 80))
		}
		r.require(20)
		r.start()
		r.until(func() bool { return len(r.store.Names()) == 20 }, func() string { return "no list" })
		if pages := r.api.asked("/services?", "continue="); pages != 2 {
			t.Errorf("%d further pages", pages)
		}
	})
}

// The errors of credentials: one clear message, nothing removed, and all is well when they are
// corrected.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		code    int
		reason  metav1.StatusReason
		message string
	}{
		{401, metav1.StatusReasonUnauthorized, "does not accept our credentials (401)"},
		{403, metav1.StatusReasonForbidden, "we may not list and watch it (403)\" resource=services"},
		{500, metav1.StatusReasonInternalError, "the API server fails"},
		{429, metav1.StatusReasonTooManyRequests, "is busy (429)"},
	} {
		t.Run(fmt.Sprint(c.code), func(t *testing.T) {
			withServer(t, func(t *testing.T, r *rig) {
				r.api.put(testService("web", 80), testSlice("web", "web-1", "10.1.0.5"))
				refuse := func(req *http.Request) *metav1.Status {
					if resourceOf(req) != "services" {
						return nil
					}
					return failure(c.code, c.reason, "no")
				}
				r.api.answer = refuse
				r.start()
				r.waitLog(c.message)
				r.until(func() bool { return r.api.asked("/services") >= 4 }, func() string { return "no retries" })
				if lines := r.log.Lines(c.message); len(lines) != 1 {
					t.Errorf("log: %v", lines)
				}
				r.api.set(func() { r.api.answer = nil })
				r.wait("web:80→10.1.0.5")
				r.waitLog("answers again")
				// The same in the middle of things.
				r.require(1)
				r.api.set(func() { r.api.answer = refuse })
				r.api.down()
				r.api.up()
				time.Sleep(time.Second)
				r.api.set(func() { r.api.answer = nil })
				r.api.put(testService("web", 81))
				r.wait("web:81→10.1.0.5")
				r.noDips()
			})
		})
	}
}

// SV-03: ServiceCIDRs may be absent or forbidden. One line reports it; the API is tried again much
// later.
func TestNoCIDRs(t *testing.T) {
	for _, c := range []struct {
		code   int
		reason metav1.StatusReason
	}{{404, metav1.StatusReasonNotFound}, {403, metav1.StatusReasonForbidden}} {
		t.Run(fmt.Sprint(c.code), func(t *testing.T) {
			withServer(t, func(t *testing.T, r *rig) {
				r.api.put(testService("web", 80), testCIDR("10.96.0.0/16"))
				refuse := func(req *http.Request) *metav1.Status {
					if resourceOf(req) == "servicecidrs" {
						return failure(c.code, c.reason, "no")
					}
					return nil
				}
				r.api.answer = refuse
				r.store.WaitForFacts(true)
				r.start()
				r.wait("web:80")
				r.until(r.store.Synced, func() string { return "the absence is not told" })
				start := time.Now()
				r.until(func() bool { return r.api.asked("/servicecidrs") >= 3 }, func() string { return "no retries" })
				if waited := time.Since(start); waited < 2*firstRetryOptional {
					t.Errorf("the second pause is no longer than the first: %v in all", waited)
				}
				if lines := r.log.Lines("Cannot list a resource"); len(lines) != 1 {
					t.Errorf("log: %v", lines)
				}
				r.api.set(func() { r.api.answer = nil })
				r.wait("web:80 cidr:10.96.0.0/16")
				// An API server that has just started forbids everything for a moment. What was
				// known stays.
				r.api.down()
				r.api.set(func() { r.api.answer = refuse })
				r.api.up()
				r.until(func() bool { return len(r.log.Lines("Cannot list a resource")) == 2 },
					func() string { return "not told again" })
				r.wait("web:80 cidr:10.96.0.0/16")
				r.api.set(func() { r.api.answer = nil })
				r.api.put(testCIDR("10.97.0.0/16"))
				r.wait("web:80 cidr:10.97.0.0/16")
			})
		})
	}
}

// Problems are reported once for each change of an object, not again when it is listed again.
func TestProblemsOnce(t *testing.T) {
	withServer(t, func(t *testing.T, r *rig) {
		r.api.put(testService("web", 80), testSlice("web", "web-1", "10.1.0.5", "fd00::5"))
		r.start()
		r.wait("web:80→10.1.0.5")
		lists := r.listCount()
		r.api.down()
		r.api.put(testService("web", 81))
		r.api.set(func() { r.api.compacted = r.api.rv })
		r.api.up()
		r.wait("web:81→10.1.0.5")
		r.until(func() bool { return r.listCount() >= lists+2 }, func() string { return "nothing was listed again" })
		r.mu.Lock()
		reported := slices.Clone(r.problems)
		r.mu.Unlock()
		if len(reported) != 1 || reported[0].Reason != convert.ReasonIncorrectIPVersion ||
			reported[0].Name.Name != "web-1" {
			t.Errorf("told %v", reported)
		}
		r.api.put(testSlice("web", "web-1", "10.1.0.5", "fd00::6"))
		r.until(func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return len(r.problems) == 2
		}, func() string { return "a change was not told" })
	})
}
