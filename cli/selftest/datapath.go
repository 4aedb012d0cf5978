package selftest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/plane/hns"
)

// reply is the server's name, and the client's address as the server sees it.
type reply struct {
	server string
	client netip.Addr
}

// answers waits until a server answers a client and, if seen is valid, sees it at that address.
func (r *run) answers(ctx context.Context, from string, to netip.AddrPort, server string, seen netip.Addr) error {
	return r.await(ctx, func() error {
		got, err := r.connect(ctx, from, to)
		switch {
		case err != nil:
			return err
		case got.server != server:
			return fmt.Errorf("%s answers", got.server)
		case seen.IsValid() && got.client != seen:
			return fmt.Errorf("%s sees %s", server, got.client)
		}
		return nil
	})
}

// reaches checks [run.answers].
func (r *run) reaches(ctx context.Context, name, from string, to netip.AddrPort, server string, seen netip.Addr) bool {
	claim := fmt.Sprintf("%s reaches %s at %s", from, server, to)
	if seen.IsValid() {
		claim += ", which sees the client's own address"
	}
	return r.check(name, claim, r.answers(ctx, from, to, server, seen))
}

// spreads checks how many servers answer 48 connections of a client.
func (r *run) spreads(ctx context.Context, name, claim, from string, to netip.AddrPort, want int) {
	servers := map[string]bool{}
	var failed error
	for range 48 {
		got, err := r.connect(ctx, from, to)
		if servers[got.server] = true; err != nil {
			failed = err
			break
		}
	}
	if failed == nil && len(servers) != want {
		failed = fmt.Errorf("%d servers answer, want %d", len(servers), want)
	}
	r.check(name, claim, failed)
}

// moves checks an open connection while change gives its frontend another server. exchange uses the
// connection and returns the server's name.
func (r *run) moves(ctx context.Context, from string, to netip.AddrPort, before, after string,
	exchange func() (string, error), change func() error) {
	still := func() error {
		server, err := exchange()
		if err == nil && server != before {
			err = fmt.Errorf("%s answers the open connection", server)
		}
		return err
	}
	err := still()
	if err == nil {
		err = change()
	}
	if err == nil {
		err = r.answers(ctx, from, to, after, netip.Addr{})
	}
	r.check("open-connection", "an open connection survives when its endpoint leaves, and new ones reach the new "+
		"endpoint", errors.Join(err, still()))
}

// echo is a pod or a node that answers as `agnhost netexec` does: /hostname with its name,
// /clientip with its client's address, and /dial with the answer of another server.
type echo struct {
	at   netip.AddrPort // not valid for the node that runs the test, which only connects
	name string
	id   string // of its endpoint
	here bool   // a pod of this node, or this node
}

// thisNode names the node that runs the test among the clients.
const thisNode = "node"

// dataPath is step 7: the node and its pods connect to a frontend, other clients to a NodePort.
func (n *hnsNode) dataPath(ctx context.Context) bool {
	if len(n.Echo) == 0 {
		return n.skip("echo", "want --echo=ADDRESS:PORT,... of pods that run `agnhost netexec`: on this node, on "+
			"another, and in a node's own network")
	}
	n.connect = n.ask
	n.echoes = map[string]echo{}
	clients := []echo{{name: thisNode, here: true}}
	for _, at := range n.Echo {
		e, err := n.find(ctx, at)
		if !n.check("echo/"+at.String(), "the node reaches it by its own address", err) {
			return true
		}
		n.echoes[e.name] = e
		clients = append(clients, e)
	}
	all := clients[1:]
	node, _ := netip.ParseAddr(n.net.ManagementIP) // step 2 checks it
	frontend, nodePort := netip.AddrPortFrom(n.EchoVIP, 20000), netip.AddrPortFrom(node, 30590)
	if n.overlay() && !n.vipEndpoint(ctx, frontend, all) {
		return true
	}
	hostReaches := false
	for _, to := range all {
		reaches := func(name string, from echo, at netip.AddrPort, seen netip.Addr) bool {
			return n.reaches(ctx, name+"/"+from.name+"/"+to.name, from.name, at, to.name, seen)
		}
		n.through(ctx, "frontend", n.balancerOf(frontend, to), func(string) {
			for _, from := range clients {
				if from.here && reaches("frontend", from, frontend, netip.Addr{}) && from.name == thisNode {
					hostReaches = true
				}
			}
		})
		l := n.balancerOf(netip.AddrPortFrom(netip.Addr{}, nodePort.Port()), to)
		n.through(ctx, "node-port", l, func(string) {
			for _, from := range clients {
				if from.name == thisNode || !from.here && from.at != to.at {
					reaches("node-port", from, nodePort, netip.Addr{})
				}
			}
		})
		if l.Flags = hns.FlagDSR; !to.here || !n.features.DSR {
			continue
		}
		n.through(ctx, "policy-local", l, func(string) {
			for _, from := range clients {
				if !from.here {
					reaches("client-address", from, nodePort, from.at.Addr())
				}
			}
		})
	}
	n.answer("host-reaches-vip", hostReaches)
	if len(all) < 2 {
		return n.skip("affinity", "needs two servers")
	}
	l := n.balancerOf(frontend, all...)
	n.through(ctx, "balanced", l, func(string) {
		n.spreads(ctx, "balanced", "connections reach every server", thisNode, frontend, len(all))
	})
	if l.PortMappings[0].DistributionType = hns.PerClient; n.features.SessionAffinity {
		n.through(ctx, "affinity", l, func(string) {
			n.spreads(ctx, "affinity", "one server answers a client", thisNode, frontend, 1)
		})
	}
	if n.features.ModifyLoadbalancer {
		n.through(ctx, "open-connection", n.balancerOf(frontend, all[0]), func(id string) {
			n.change(ctx, id, frontend, all[0], all[1])
		})
	}
	return true
}

// vipEndpoint answers whether pods of an overlay network need a remote endpoint at a frontend's
// address, and creates it as the plane does.
func (n *hnsNode) vipEndpoint(ctx context.Context, frontend netip.AddrPort, all []echo) bool {
	if i := slices.IndexFunc(all, func(e echo) bool { return e.here }); i >= 0 {
		n.through(ctx, "vip-endpoint", n.balancerOf(frontend, all[i]), func(string) {
			_, err := n.ask(ctx, all[i].name, frontend)
			n.answer("vip-endpoint", err != nil)
		})
	}
	_, err := n.endpoint(ctx, frontend.Addr())
	return n.check("vip-endpoint-created", "HNS creates a remote endpoint at the frontend's address", err)
}

// change replaces the endpoint of a load balancer while a connection is open.
func (n *hnsNode) change(ctx context.Context, id string, at netip.AddrPort, from, to echo) {
	c, err := n.Dial(ctx, "tcp", at.String())
	if err != nil {
		n.check("open-connection", "the node connects to "+at.String(), err)
		return
	}
	defer c.Close()
	exchange := func() (string, error) {
		if _, err := io.WriteString(c, "GET /hostname HTTP/1.1\r\nHost: echo\r\n\r\n"); err != nil {
			return "", err
		}
		return read(http.ReadResponse(bufio.NewReader(c), nil))
	}
	n.moves(ctx, thisNode, at, from.name, to.name, exchange, func() error {
		l := n.balancerOf(at, to)
		l.ID = id
		_, err := n.HNS.ModifyLoadBalancer(ctx, l)
		return err
	})
}

// find returns the server at an address, and finds or creates its endpoint.
func (n *hnsNode) find(ctx context.Context, at netip.AddrPort) (e echo, err error) {
	got, err := n.ask(ctx, thisNode, at)
	if err != nil {
		return e, err
	}
	e.at, e.name = at, got.server
	found, err := n.HNS.EndpointsAt(ctx, n.net.ID, at.Addr().String())
	if i := with(found, at.Addr()); i >= 0 {
		e.id, e.here = found[i].ID, found[i].Flags&hns.RemoteEndpoint == 0
		return e, err
	}
	made, err := n.endpoint(ctx, at.Addr())
	e.id = made.ID
	return e, err
}

// balancerOf is a load balancer of servers with the same port.
func (n *hnsNode) balancerOf(at netip.AddrPort, all ...echo) hns.LoadBalancer {
	l := n.balancer(at.Addr(), at.Port())
	l.PortMappings[0].InternalPort = all[0].at.Port()
	for _, e := range all {
		l.HostComputeEndpoints = append(l.HostComputeEndpoints, e.id)
	}
	return l
}

// through calls f while a load balancer exists, or writes why it does not.
func (n *hnsNode) through(ctx context.Context, name string, l hns.LoadBalancer, f func(id string)) {
	err := n.during(ctx, l, func(made hns.LoadBalancer) error {
		f(made.ID)
		return nil
	})
	if err != nil {
		n.check(name+"/load-balancer", "HNS creates and deletes the test's load balancer", err)
	}
}

// ask connects from this node, or from the echo of that name.
func (n *hnsNode) ask(ctx context.Context, from string, to netip.AddrPort) (got reply, err error) {
	ctx, cancel := context.WithTimeout(ctx, n.Timeout)
	defer cancel()
	client := http.Client{Transport: &http.Transport{DialContext: n.Dial, DisableKeepAlives: true}}
	get := func(query string) (string, error) {
		url := fmt.Sprintf("http://%s/%s", to, query)
		if from != thisNode {
			url = fmt.Sprintf("http://%s/dial?host=%s&port=%d&protocol=http&tries=1&request=%s", n.echoes[from].at,
				to.Addr(), to.Port(), query)
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return "", err
		}
		text, err := read(client.Do(request))
		if err != nil || from == thisNode {
			return text, err
		}
		var answer struct{ Responses, Errors []string }
		if err := json.Unmarshal([]byte(text), &answer); err != nil || len(answer.Responses) != 1 {
			return "", errors.Join(err, fmt.Errorf("%s has no answer: %s", from, strings.Join(answer.Errors, ", ")))
		}
		return answer.Responses[0], nil
	}
	if got.server, err = get("hostname"); err != nil {
		return got, err
	}
	text, err := get("clientip")
	if host, _, e := net.SplitHostPort(text); err == nil && e == nil {
		got.client, err = netip.ParseAddr(host)
	}
	return got, err
}

func read(answer *http.Response, err error) (string, error) {
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<16))
	return strings.TrimSpace(string(text)), err
}
