package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"kube-proxy/internal/netlab"
)

// The demonstration of failover: a node is cut off for cutFor, while clients connect to the shop
// every cutEvery and wait for cutWait.
const (
	cutFor   = 5 * time.Second
	cutEvery = 25 * time.Millisecond
	cutWait  = 5 * time.Second
)

// cutAddress is the Service of cutManifest.
var cutAddress = netip.MustParseAddrPort("10.96.0.77:80")

// cutManifest has the other Nodes of a cluster, and a Service with an endpoint on each of three: a
// node is found unreachable only while another one answers. The client outside stands for node3.
const cutManifest = `apiVersion: v1
kind: Node
metadata: {name: node2}
status: {addresses: [{type: InternalIP, address: %[1]s}]}
---
apiVersion: v1
kind: Node
metadata: {name: node3}
status: {addresses: [{type: InternalIP, address: %[2]s}]}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: three-nodes}
spec: {clusterIP: 10.96.0.77, clusterIPs: [10.96.0.77], ipFamilies: [IPv4], ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: three-nodes, labels: {kubernetes.io/service-name: three-nodes}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [%[3]s], nodeName: node1}
- {addresses: [%[4]s], nodeName: node2}
- {addresses: [%[2]s], nodeName: node3}
`

// prepareCut adds cutManifest, and waits until its Service answers.
func (d *demo) prepareCut(ctx context.Context) error {
	if _, err := d.field.lab.Listen(netlab.Client, netlab.TCP, whoPorts[0]); err != nil {
		return err
	}
	addr := func(host string) netip.Addr { return netlab.Addr(host, false) }
	text := fmt.Sprintf(cutManifest, addr(netlab.Node2), addr(netlab.Client), addr("pod1"), addr("pod4"))
	if err := os.WriteFile(d.cutFile(), []byte(text), 0o644); err != nil {
		return err
	}
	return d.cutServed(ctx)
}

// cutServed waits until the Service of cutManifest answers.
func (d *demo) cutServed(ctx context.Context) error {
	return d.await(ctx, cutAddress.String()+" is served", func() error {
		r, err := d.field.lab.Dial(netlab.Node1, netlab.TCP, cutAddress, netlab.DialOptions{Timeout: d.field.silence})
		if err == nil && r.Server == netlab.Sink {
			err = errors.New("it is at the end of the default route")
		}
		return err
	})
}

func (d *demo) cutFile() string { return filepath.Join(d.dir, "three-nodes.yaml") }

// await calls f until it has no error.
func (d *demo) await(ctx context.Context, what string, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, servesWithin)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return d.proxy.explain(fmt.Errorf("wait until %s: %w", what, err))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// losses count the connections of clients while a node is cut off.
type losses struct {
	connections, failed int
	slowest             time.Duration // of those that did not fail
}

// failover cuts node2 off twice, with failover off and on, and prints what clients meet. It is an
// error if failover helps none of them. In a mode without failover it shows the loss alone.
func (d *demo) failover(ctx context.Context) (err error) {
	d.out.printf("\n")
	if err := d.prepareCut(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(d.cutFile())) }()
	without := 0
	for _, value := range []string{"off", "avoid"} {
		step := d.out.step("failover", "node2, with one of three endpoints, is cut off for %s; --failover=%s",
			took(cutFor), value)
		if value != "off" {
			if err := d.restart(ctx, "--failover="+value); err != nil {
				return err
			}
			on, err := d.proxy.log.awaitFailover(ctx)
			if err != nil {
				return d.proxy.explain(err)
			}
			if !on {
				d.out.printf(" mode %s has none\n", d.options.mode.Name)
				break
			}
			if err := d.cutServed(ctx); err != nil { // in mode userspace the new process relays
				return err
			}
		}
		l, err := d.cut(ctx)
		if err != nil {
			return err
		}
		step.done()
		d.out.printf("            %d of %d connections failed, the others took at most %s\n", l.failed, l.connections,
			took(l.slowest))
		if value == "off" {
			without = l.failed
		} else if l.failed > 0 && l.failed >= without {
			return fmt.Errorf("%d connections failed with --failover=%s, %d without; the log of kube-proxy:\n%s",
				l.failed, value, without, d.proxy.log)
		}
	}
	return d.restart(ctx) // the demo goes on as it began, with node2 in use
}

// restart replaces the proxy by one with more flags. The kernel serves meanwhile.
func (d *demo) restart(ctx context.Context, flags ...string) error {
	if err := d.proxy.stop(); err != nil {
		return err
	}
	next, err := startProxy(d.field.lab, d.path, d.dir, d.options.mode.Name, flags...)
	if err != nil {
		return err
	}
	d.proxy = next
	// The kernel serves with the rules of the process before; commands need the new one.
	return d.await(ctx, "kube-proxy listens", func() error {
		c, err := net.Dial("unix", socket(d.dir))
		if err != nil {
			return err
		}
		return c.Close()
	})
}

// cut has node2 cut off while node1 connects to the Service.
func (d *demo) cut(ctx context.Context) (losses, error) {
	if err := d.field.lab.Cut(netlab.Node2, true); err != nil {
		return losses{}, fmt.Errorf("cut node2 off: %w", err)
	}
	var l losses
	var mu sync.Mutex
	var running sync.WaitGroup
	tick := time.NewTicker(cutEvery)
	defer tick.Stop()
	for end := time.Now().Add(cutFor); time.Now().Before(end) && ctx.Err() == nil; <-tick.C {
		running.Go(func() {
			begin := time.Now()
			_, err := d.field.lab.Dial(netlab.Node1, netlab.TCP, cutAddress, netlab.DialOptions{Timeout: cutWait})
			took := time.Since(begin)
			mu.Lock()
			defer mu.Unlock()
			l.connections++
			if err != nil {
				l.failed++
			} else {
				l.slowest = max(l.slowest, took)
			}
		})
	}
	running.Wait() // node2 is cut off until the last client has its answer
	return l, errors.Join(ctx.Err(), d.field.lab.Cut(netlab.Node2, false))
}
