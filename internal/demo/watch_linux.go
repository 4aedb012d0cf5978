package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// quiet is how long kube-proxy must have written nothing before the rows are measured: it writes IPv4 and
	// IPv6 on their own.
	quiet = 40 * time.Millisecond
	// unwritten is how long after an edit the rows are measured if kube-proxy has written nothing.
	unwritten = 600 * time.Millisecond
)

// occasion is why rows are measured again.
type occasion struct {
	files  []string // that were edited
	edited time.Time
	writes []news
}

// watch measures again after each edit and each write of kube-proxy, until ctx ends or kube-proxy does.
func (d *demo) watch(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", d.dir, err)
	}
	defer watcher.Close()
	if err := watcher.Add(d.dir); err != nil {
		return fmt.Errorf("watch %s: %w", d.dir, err)
	}
	d.forgetOldNews()
	var why occasion
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.proxy.exited:
			return errors.New("kube-proxy is gone")
		case err := <-watcher.Errors:
			d.out.printf("%s  notices of edits were lost: %v\n", clock(), err)
		case ev := <-watcher.Events:
			if why.edit(ev) {
				due = time.After(unwritten)
			}
		case n := <-d.proxy.log.news:
			if n.complaint != "" {
				d.out.printf("%s  %s %s\n", clock(), d.layout.paint(yellow, "kube-proxy says:"), n.complaint)
				continue
			}
			why.writes = append(why.writes, n)
			due = time.After(quiet)
		case <-due:
			due = nil
			d.again(ctx, why)
			why = occasion{}
		}
	}
}

// forgetOldNews drops the writes of the start.
func (d *demo) forgetOldNews() {
	for {
		select {
		case <-d.proxy.log.news:
		default:
			return
		}
	}
}

func clock() string { return time.Now().Format("15:04:05") }

// edit takes in a notice; it returns whether it is of a file that matters.
func (o *occasion) edit(ev fsnotify.Event) bool {
	name := filepath.Base(ev.Name)
	known := slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) || name == packetsFile
	if !known || strings.HasPrefix(name, ".") || ev.Op == fsnotify.Chmod {
		return false
	}
	if len(o.files) == 0 {
		o.edited = time.Now()
	}
	if !slices.Contains(o.files, name) {
		o.files = append(o.files, name)
	}
	return true
}

// String says what happened: "web.yaml changed; kube-proxy wrote IPv4 in 1ms, 31 ms later".
func (o *occasion) String() string {
	var parts []string
	if len(o.files) > 0 {
		parts = append(parts, strings.Join(o.files, ", ")+" changed")
	}
	for i, w := range o.writes {
		rows := "rows"
		if w.changes == "1" {
			rows = "row"
		}
		text := fmt.Sprintf("%s %s %s in %s", w.changes, w.family, rows, w.took)
		if i == 0 {
			text = "kube-proxy wrote " + text
		}
		parts = append(parts, text)
	}
	if len(o.writes) == 0 {
		parts = append(parts, "kube-proxy found nothing to write")
	} else if !o.edited.IsZero() {
		parts[len(parts)-1] += fmt.Sprintf(", %s after the edit", took(o.writes[len(o.writes)-1].at.Sub(o.edited)))
	}
	return strings.Join(parts, "; ")
}

// again measures the rows anew, first those that kube-proxy should decide differently now, and prints those
// that differ.
func (d *demo) again(ctx context.Context, why occasion) {
	d.out.printf("%s  %s\n", clock(), d.layout.paint(bold, why.String()))
	if s, err := loadShop(d.dir, d.shop); err == nil {
		d.shop = s
	} else {
		d.out.printf("%s  the folder cannot be read, so the rows stay as they are: %v\n", clock(), err)
	}
	var first, rest []row
	for _, r := range d.shop.rows {
		if d.now[r.id()].decides != r.decides {
			first = append(first, r)
		} else {
			rest = append(rest, r)
		}
	}
	changed := d.compare(d.measured(ctx, first, full))
	d.print(ctx, changed)
	// Of the rest nothing is expected. What looks different with few connections is asked again.
	suspects := d.compare(d.measured(ctx, rest, few))
	var again []row
	for _, e := range suspects {
		again = append(again, e.row)
	}
	others := d.compare(d.measured(ctx, again, full))
	d.print(ctx, others)
	if ctx.Err() != nil {
		return
	}
	since := why.edited
	if since.IsZero() && len(why.writes) > 0 {
		since = why.writes[0].at
	}
	d.out.printf("          %d rows changed, %d stayed; %s since it happened\n\n", len(changed)+len(others),
		len(d.shop.rows)-len(changed)-len(others), took(time.Since(since)))
}

func (d *demo) measured(ctx context.Context, rows []row, connections int) []entry {
	var entries []entry
	for i, t := range d.field.measure(ctx, rows, effort{connections: connections, quick: true}) {
		entries = append(entries, entry{row: rows[i], tally: t})
	}
	return entries
}

// compare returns the entries that are not as they were, with what they were.
func (d *demo) compare(entries []entry) []entry {
	var changed []entry
	for _, e := range entries {
		was, known := d.now[e.id()]
		if known && was.tally.outcome() == e.tally.outcome() {
			was.row = e.row
			d.now[e.id()] = was
			continue
		}
		if known {
			e.before = &was.tally
		}
		changed = append(changed, e)
	}
	return changed
}

// print prints changed rows and notes them.
func (d *demo) print(ctx context.Context, changed []entry) {
	if len(changed) == 0 || ctx.Err() != nil {
		return
	}
	d.out.lines(d.layout.rows(changed))
	for _, e := range changed {
		d.now[e.id()] = e
	}
}
