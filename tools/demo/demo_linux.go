package main

import (
	"context"
	"strings"

	"kube-proxy/internal/netlab"
)

// demo is a running lab whose kube-proxy serves.
type demo struct {
	out     *printer
	field   *field
	proxy   *proxy
	path    string // of the binary
	dir     string // the copy of the shop that kube-proxy follows
	options options
	shop    *shop
	// now has the last result of each row, by its id.
	now    map[string]entry
	layout layout
	unread string // why the folder could not be read the last time
}

// first measures all rows and prints the table. It returns the number of unexpected results.
func (d *demo) first(ctx context.Context) (wrong int, err error) {
	step := d.out.step("packets", "real TCP and UDP connections for %d cases, both IP families", len(d.shop.rows))
	tallies := d.field.measure(ctx, d.shop.rows, effort{connections: d.options.connections})
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	step.done()
	d.layout.color = d.out.color
	d.now = map[string]entry{}
	var entries []entry
	sent := 0
	for i, r := range d.shop.rows {
		e := entry{row: r, tally: tallies[i]}
		sent += e.tally.sent()
		entries = append(entries, e)
		d.now[r.id()] = e
	}
	d.out.printf("\n")
	d.out.lines(d.layout.table(entries))
	wrong = verdict(entries)
	d.out.printf("\n%d connections; %d of %d cases match %s\n", sent, len(entries)-wrong, len(entries), packetsFile)
	return wrong, nil
}

// invite suggests commands to try.
func (d *demo) invite() {
	in := func(host string) string { return "ip netns exec kp-" + d.options.lab + "-" + host + " " }
	d.out.printf("\n%s\n", strings.Join([]string{
		"You have seen a Linux kernel serve the Kubernetes Services of a node: real connections that reached a pod,",
		"or were refused or dropped, as each Service says, and connections that survived the loss of a node.",
	}, "\n"))
	customer, _ := netlab.HostByName(netlab.Client)
	d.out.printf("\n%s\n\n", d.layout.paint(bold, "The lab stands until Ctrl-C or Enter. In another terminal, try:"))
	for _, try := range []struct{ what, command string }{
		{"show what happens to a packet of a client outside the cluster, and why",
			d.options.proxy + " trace " + customer.V4.String() + " 192.0.2.30:8000 --admin-socket=" + socket(d.dir)},
		{"see all of it in a browser", d.options.proxy + " ui --admin-socket=" + socket(d.dir)},
		{"break it, and see kube-proxy repair it", in("node1") + d.options.mode.Flush},
	} {
		d.out.printf("  %s\n", d.layout.paint(dim, "# "+try.what))
		d.out.printf("  %s\n", strings.ReplaceAll(try.command, "\n", "\n  "))
	}
	d.out.printf("\nkube-proxy follows the files in %s; %s there has the packets.\n", d.dir, packetsFile)
	d.out.printf("Change a file: rows that change are printed below, with %s where they are not as it says any more.\n"+
		"docs/ask.md has more commands.\n\n", differs)
}
