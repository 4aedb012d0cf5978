package main

import (
	"context"
	"errors"
	"time"
)

// rest is the wait of the demo between two measurements of all rows.
const rest = 500 * time.Millisecond

// watch measures all rows repeatedly, and prints those that changed, until ctx ends or kube-proxy
// does.
func (d *demo) watch(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.proxy.exited:
			return errors.New("kube-proxy is gone")
		case text := <-d.proxy.log.complaints:
			d.out.printf("%s  %s %s\n", clock(), d.layout.paint(yellow, "kube-proxy says:"), text)
		case <-time.After(rest):
			if err := d.again(ctx); err != nil {
				return err
			}
		}
	}
}

func clock() string { return time.Now().Format("15:04:05") }

// again measures the rows with few connections, those with differences with many, and prints the
// changed ones.
func (d *demo) again(ctx context.Context) error {
	d.reload()
	if err := d.field.calibrate(); err != nil {
		return err
	}
	var suspects []row
	for _, e := range d.compare(d.measured(ctx, d.shop.rows, few)) {
		suspects = append(suspects, e.row)
	}
	changed := d.compare(d.measured(ctx, suspects, full))
	if len(changed) == 0 || ctx.Err() != nil {
		return nil
	}
	d.out.printf("%s\n", clock())
	d.out.lines(d.layout.rows(changed))
	for _, e := range changed {
		d.now[e.id()] = e
	}
	d.out.printf("          %d rows changed, %d did not\n\n", len(changed), len(d.shop.rows)-len(changed))
	return nil
}

// reload reads the folder again. If that fails, the rows stay: packets are still sent to a deleted
// Service.
func (d *demo) reload() {
	s, err := loadShop(d.dir)
	if err == nil {
		d.shop, d.unread = s.inMode(d.options.mode), ""
	} else if err.Error() != d.unread {
		d.unread = err.Error()
		d.out.printf("%s  the packets stay as they are: %v\n", clock(), err)
	}
}

func (d *demo) measured(ctx context.Context, rows []row, connections int) []entry {
	var entries []entry
	for i, t := range d.field.measure(ctx, rows, effort{connections: connections, quick: true}) {
		entries = append(entries, entry{row: rows[i], tally: t})
	}
	return entries
}

// compare returns the changed entries, with their previous results.
func (d *demo) compare(entries []entry) (changed []entry) {
	for _, e := range entries {
		was, known := d.now[e.id()]
		if known && was.tally.outcome() == e.tally.outcome() {
			continue
		}
		if known {
			e.before = &was.tally
		}
		changed = append(changed, e)
	}
	return changed
}
