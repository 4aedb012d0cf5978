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
	"strings"

	"kube-proxy/plane/hns"
)

// echo is a pod or a node that answers as `agnhost netexec` does: /hostname with its name, /clientip with
// its client's address, and /dial with the answer of a server that it connects to itself.
type echo struct {
	at   netip.AddrPort // not valid for the node that runs the test, which only connects
	name string
	id   string // of its endpoint
	here bool   // a pod of this node, or this node
}

// dataPath is step 7: the node and its pods connect to a frontend, and clients elsewhere to a NodePort.
func (n *hnsNode) dataPath(ctx context.Context) bool {
	if len(n.Echo) == 0 {
		return n.skip("echo", "--echo names no pods that run `agnhost netexec`: want ADDRESS:PORT,... of some here, on another node and in a node's own network")
	}
	var all []echo
	for _, at := range n.Echo {
		e, err := n.find(ctx, at)
		if !n.check("echo/"+at.String(), "the node reaches it by its own address", err) {
			return true
		}
		all = append(all, e)
	}
	node, _ := netip.ParseAddr(n.net.ManagementIP) // step 2 checks it
	frontend, nodePort := netip.AddrPortFrom(n.EchoVIP, 20000), netip.AddrPortFrom(node, 30590)
	clients := append([]echo{{name: "node", here: true}}, all...)
	for _, to := range all {
		n.through(ctx, "frontend", n.balancerOf(frontend, to), func(string) {
			for _, from := range clients {
				if from.here {
					n.answered(ctx, "frontend", from, to, frontend, "hostname", to.name)
				}
			}
		})
		l := n.balancerOf(netip.AddrPortFrom(netip.Addr{}, nodePort.Port()), to)
		n.through(ctx, "node-port", l, func(string) {
			for _, from := range clients {
				if !from.at.IsValid() || !from.here && from.at != to.at {
					n.answered(ctx, "node-port", from, to, nodePort, "hostname", to.name)
				}
			}
		})
		if l.Flags = hns.FlagDSR; !to.here || !n.features.DSR {
			continue
		}
		n.through(ctx, "policy-local", l, func(string) {
			for _, from := range clients {
				if !from.here {
					n.answered(ctx, "client-address", from, to, nodePort, "clientip", from.at.Addr().String())
				}
			}
		})
	}
	if len(all) < 2 {
		return n.skip("affinity", "it takes two echoes")
	}
	l := n.balancerOf(frontend, all...)
	n.through(ctx, "balanced", l, func(string) { n.check("balanced", "connections reach every echo", n.servers(ctx, frontend, len(all))) })
	if l.PortMappings[0].DistributionType = hns.PerClient; n.features.SessionAffinity {
		n.through(ctx, "affinity", l, func(string) { n.check("affinity", "one echo answers a client", n.servers(ctx, frontend, 1)) })
	}
	if l = n.balancerOf(frontend, all[0]); n.features.ModifyLoadbalancer {
		n.through(ctx, "open-connection", l, func(id string) {
			l.ID, l.HostComputeEndpoints = id, []string{all[1].id}
			n.check("open-connection", "an open connection goes on when its endpoint leaves; a new one reaches the new endpoint", n.moved(ctx, l, all, frontend))
		})
	}
	return true
}

// find asks an echo for its name, and HNS for its endpoint.
func (n *hnsNode) find(ctx context.Context, at netip.AddrPort) (e echo, err error) {
	e.at = at
	if e.name, err = n.ask(ctx, echo{}, at, "hostname"); err != nil {
		return e, err
	}
	found, err := n.HNS.EndpointsAt(ctx, n.net.ID, at.Addr().String())
	if i := with(found, at.Addr()); i >= 0 {
		e.id, e.here = found[i].ID, found[i].Flags&hns.RemoteEndpoint == 0
		return e, err
	}
	made, err := n.endpoint(ctx, at.Addr())
	e.id = made.ID
	return e, err
}

// balancerOf is a load balancer of echoes, all of which listen on one port.
func (n *hnsNode) balancerOf(at netip.AddrPort, all ...echo) hns.LoadBalancer {
	l := n.balancer(at.Addr(), at.Port())
	l.PortMappings[0].InternalPort = all[0].at.Port()
	for _, e := range all {
		l.HostComputeEndpoints = append(l.HostComputeEndpoints, e.id)
	}
	return l
}

// through calls f while there is a load balancer of that id.
func (n *hnsNode) through(ctx context.Context, name string, l hns.LoadBalancer, f func(id string)) {
	err := n.during(ctx, l, func(made hns.LoadBalancer) error {
		f(made.ID)
		return nil
	})
	if err != nil {
		n.check(name+"/load-balancer", "HNS makes the load balancer of the test and deletes it", err)
	}
}

// answered checks what a client is answered at an address that leads to an echo.
func (n *hnsNode) answered(ctx context.Context, name string, from, to echo, at netip.AddrPort, question, want string) {
	claim := fmt.Sprintf("%s connects to %s by %s; /%s is %s", from.name, to.name, at, question, want)
	n.check(name+"/"+from.name+"/"+to.name, claim, n.await(ctx, func() error {
		got, err := n.ask(ctx, from, at, question)
		if err == nil && got != want {
			err = fmt.Errorf("the answer is %q", got)
		}
		return err
	}))
}

// servers checks how many echoes answer the node's connections.
func (n *hnsNode) servers(ctx context.Context, at netip.AddrPort, want int) error {
	names := map[string]bool{}
	for range 16 * len(n.Echo) {
		name, err := n.ask(ctx, echo{}, at, "hostname")
		if err != nil {
			return err
		}
		names[name] = true
	}
	if len(names) != want {
		return fmt.Errorf("%d do, want %d", len(names), want)
	}
	return nil
}

// moved gives the load balancer of the first echo to the second while a connection is open.
func (n *hnsNode) moved(ctx context.Context, changed hns.LoadBalancer, all []echo, at netip.AddrPort) error {
	c, err := n.Dial(ctx, "tcp", at.String())
	if err != nil {
		return err
	}
	defer c.Close()
	still := func() error {
		if _, err := io.WriteString(c, "GET /hostname HTTP/1.1\r\nHost: echo\r\n\r\n"); err != nil {
			return err
		}
		name, err := read(http.ReadResponse(bufio.NewReader(c), nil))
		if err == nil && name != all[0].name {
			err = fmt.Errorf("%q answers the open connection", name)
		}
		return err
	}
	if err := still(); err != nil {
		return err
	}
	if _, err := n.HNS.ModifyLoadBalancer(ctx, changed); err != nil {
		return err
	}
	err = n.await(ctx, func() error {
		name, err := n.ask(ctx, echo{}, at, "hostname")
		if err == nil && name != all[1].name {
			err = fmt.Errorf("%q answers a new connection", name)
		}
		return err
	})
	return errors.Join(err, still())
}

// ask returns what a server answers the node, or an echo that is asked to connect.
func (n *hnsNode) ask(ctx context.Context, from echo, at netip.AddrPort, question string) (text string, err error) {
	ctx, cancel := context.WithTimeout(ctx, n.Patience)
	defer cancel()
	url := fmt.Sprintf("http://%s/%s", at, question)
	if from.at.IsValid() {
		url = fmt.Sprintf("http://%s/dial?host=%s&port=%d&protocol=http&tries=1&request=%s", from.at, at.Addr(), at.Port(), question)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	client := http.Client{Transport: &http.Transport{DialContext: n.Dial, DisableKeepAlives: true}}
	if text, err = read(client.Do(request)); err != nil {
		return "", err
	}
	if from.at.IsValid() {
		var answer struct{ Responses, Errors []string }
		if err := json.Unmarshal([]byte(text), &answer); err != nil || len(answer.Responses) != 1 {
			return "", errors.Join(err, fmt.Errorf("%s has no answer: %s", from.name, strings.Join(answer.Errors, ", ")))
		}
		text = answer.Responses[0]
	}
	if host, _, err := net.SplitHostPort(text); err == nil { // of /clientip
		text = host
	}
	return text, nil
}

func read(answer *http.Response, err error) (string, error) {
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<16))
	return strings.TrimSpace(string(text)), err
}
