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
	edits := make(chan edit, 256)
	go forward(ctx, watcher.Events, edits)
	d.more = func() bool { return len(edits)+len(d.proxy.log.news) > 0 }
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
		case ed := <-edits:
			why.add(ed)
			if len(why.writes) == 0 {
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

// edit is a file of the shop that was changed, and when.
type edit struct {
	file string
	at   time.Time
}

// forward notes when files that matter are changed, also while rows are measured.
func forward(ctx context.Context, events <-chan fsnotify.Event, edits chan<- edit) {
	for {
		select {
		case <-ctx.Done():
			return
		case ev := <-events:
			name := filepath.Base(ev.Name)
			if (isManifest(name) || name == packetsFile) && ev.Op != fsnotify.Chmod {
				edits <- edit{name, time.Now()}
			}
		}
	}
}

func (o *occasion) add(e edit) {
	if len(o.files) == 0 {
		o.edited = e.at
	}
	if !slices.Contains(o.files, e.file) {
		o.files = append(o.files, e.file)
	}
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
		text := fmt.Sprintf("%s %s %s in %s", w.changes, w.family, rows, took(w.took))
		if i == 0 {
			text = "kube-proxy wrote " + text
		}
		parts = append(parts, text)
	}
	if len(o.writes) == 0 {
		parts = append(parts, "kube-proxy found nothing to write")
	} else if last := o.writes[len(o.writes)-1].at; !o.edited.IsZero() && last.After(o.edited) {
		parts[len(parts)-1] += fmt.Sprintf(", %s after the edit", took(last.Sub(o.edited)))
	}
	return strings.Join(parts, "; ")
}

// again measures the rows anew, first those that kube-proxy should decide differently now, and prints those
// that differ.
func (d *demo) again(ctx context.Context, why occasion) {
	d.out.printf("%s  %s\n", clock(), d.layout.paint(bold, why.String()))
	if s, err := loadShop(d.dir, d.shop); err == nil {
		s = s.inMode(d.options.mode)
		d.shop = s
	} else {
		d.out.printf("          the rows stay as they are: %v\n", err)
	}
	if err := d.field.calibrate(); err != nil {
		d.out.printf("          %v\n", err)
	}
	var first, rest []row
	for _, r := range d.shop.rows {
		if d.now[r.id()].decides != r.decides {
			first = append(first, r)
		} else {
			rest = append(rest, r)
		}
	}
	begin := why.begin()
	changed := d.compare(d.measured(ctx, first, full))
	d.print(ctx, changed)
	seen := time.Since(begin)
	// Of the rest nothing is expected. What looks different with few connections is asked again.
	var others []entry
	asked := len(first)
	for some := range slices.Chunk(rest, workers) {
		if d.more() {
			break // what happened meanwhile is more urgent, and is followed by a look at all rows again
		}
		var suspects []row
		for _, e := range d.compare(d.measured(ctx, some, few)) {
			suspects = append(suspects, e.row)
		}
		others = append(others, d.compare(d.measured(ctx, suspects, full))...)
		asked += len(some)
	}
	d.print(ctx, others)
	if ctx.Err() != nil {
		return
	}
	if len(others) > 0 {
		seen = time.Since(begin)
	}
	n := len(changed) + len(others)
	if n == 0 {
		d.out.printf("          no row changed; %d were asked within %s\n\n", asked, took(time.Since(begin)))
		return
	}
	d.out.printf("          %d rows changed, on this screen %s after %s; %d did not change\n\n", n, took(seen), why.what(), asked-n)
}

// begin is when it happened.
func (o *occasion) begin() time.Time {
	if o.edited.IsZero() {
		return o.writes[0].at
	}
	return o.edited
}

func (o *occasion) what() string {
	if o.edited.IsZero() {
		return "the write"
	}
	return "the edit"
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
