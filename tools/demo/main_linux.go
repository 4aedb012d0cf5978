// Command demo is the program of `make run`: a lab of network namespaces in which bin/kube-proxy
// serves the Services of docs/examples/shop, and a table of the pods that answered.
//
//	docs/examples/shop/*.yaml ──copy──▶ a folder ──▶ kube-proxy (in the namespace of node1) ──▶ kernel
//	docs/examples/shop/shop.txtar ────────┴──▶ packets: sender, target, expected pods
//	                                        └──▶ connections ──▶ tally ──▶ check ──▶ table
//
// The kube-proxy is the one that would run on a node, with the flags that it would have there. The
// demo uses only the information of an operator: its addresses, its log, and which pods answer.
//
// It then measures all rows repeatedly, and prints those that changed. With --once it exits after
// the table: 0 if every row is as in shop.txtar. It removes everything that it made, also after
// SIGINT, SIGTERM and SIGHUP; the next run replaces the remains after a SIGKILL.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/all"
)

func main() {
	// The parent process may end without a signal to this one, as `go run` does.
	_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM), 0, 0, 0)
	var o options
	flag.BoolVar(&o.once, "once", false, "print the table and exit, with 1 if a row is not as shop.txtar says")
	flag.BoolVar(&o.noFailover, "no-failover", false, "cut no node off: the proxy keeps its first manifests and flags")
	flag.StringVar(&o.proxy, "kube-proxy", "bin/kube-proxy", "the binary")
	flag.StringVar(&o.shop, "shop", "docs/examples/shop", "folder of manifests, and shop.txtar with the packets")
	flag.StringVar(&o.lab, "lab", "demo", "name of the lab, for a second one at the same time")
	modes := all.Modes()
	built := modes.Names(mode.Mode.Built)
	name := flag.String("mode", "nftables", strings.Join(built, " or "))
	flag.IntVar(&o.connections, "connections", many, "connections of each row of the first table")
	flag.Parse()
	o.mode, _ = modes.Find(*name)
	if !o.mode.Built() {
		fmt.Fprintf(os.Stderr, "demo: --mode %s: want %s\n", *name, strings.Join(built, " or "))
		os.Exit(2)
	}
	// SIGPIPE: a closed standard output must not keep us from taking the lab away.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP,
		syscall.SIGPIPE)
	if _, err := unix.IoctlGetTermios(int(os.Stdin.Fd()), unix.TCGETS); err == nil { // Enter ends the demo too
		go func() {
			_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
			stop()
		}()
	}
	out := newPrinter(os.Stdout)
	err := run(ctx, out, o)
	stop()
	out.endLine()
	switch {
	case err == nil, errors.Is(err, context.Canceled) && !o.once:
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "demo: stopped before the table was ready")
		os.Exit(1)
	default:
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
}

type options struct {
	once        bool
	noFailover  bool
	proxy, shop string
	lab         string // in the names of the namespaces: kp-demo-node1
	connections int    // of each row of the first table
	mode        mode.Mode
}

// run is the whole demo, with its cleanup. It returns all errors.
func run(ctx context.Context, out *printer, o options) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("needs root: it makes network namespaces and puts rules into them")
	}
	proxyPath, err := filepath.Abs(o.proxy)
	if err == nil {
		_, err = os.Stat(proxyPath)
	}
	if err != nil {
		return fmt.Errorf("find the binary: %w (make build makes it)", err)
	}
	o.shop, err = filepath.Abs(o.shop)
	if err != nil {
		return fmt.Errorf("find the shop: %w", err)
	}
	var leaving *step
	defer func() { // after all others
		if leaving != nil {
			leaving.done()
		}
	}()
	shop, err := loadShop(o.shop)
	if err != nil {
		return err
	}
	shop = shop.inMode(o.mode)

	step := out.step("lab", "a node with 3 pods, a second with 2, a client, a sink: namespaces kp-%s-*", o.lab)
	f, err := newField(o.lab, shop)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.close(); e != nil {
			err = errors.Join(err, fmt.Errorf("take the lab away: %w", e))
		}
	}()
	step.done()
	dir := "/run/kube-proxy-shop-" + o.lab // only root writes to /run
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := copyShop(o.shop, dir); err != nil {
		return err
	}
	if err := f.lab.Do("node1", func() error { return o.mode.Able(mode.Settings{Family: lb.IPv4}) }); err != nil {
		return err
	}

	p, err := startProxy(f.lab, proxyPath, dir, o.mode.Name)
	if err != nil {
		return err
	}
	d := &demo{out: out, field: f, proxy: p, path: proxyPath, dir: dir, options: o, shop: shop}
	defer func() { err = errors.Join(err, d.proxy.stop()) }()
	step = out.step("kube-proxy", "pid %d in kp-%s-node1, %s mode, manifests from %s", p.pid(), o.lab, o.mode.Name, dir)
	if err := p.waitServing(ctx, f, shop); err != nil {
		return p.explain(err)
	}
	step.done()

	wrong, err := d.first(ctx)
	if err != nil {
		return p.explain(err)
	}
	if !o.noFailover {
		if err := d.failover(ctx); err != nil {
			return err
		}
	}
	if o.once {
		if wrong > 0 {
			return fmt.Errorf("%d of %d cases do not match %s", wrong, len(d.now), packetsFile)
		}
		return nil
	}
	d.invite()
	err = d.proxy.explain(d.watch(ctx))
	if errors.Is(err, context.Canceled) {
		out.endLine()
		leaving = out.step("stopping", "kube-proxy, the namespaces, %s", dir)
	}
	return err
}
