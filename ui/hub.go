package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"kube-proxy/changes"
)

const (
	// pause is the least time between two messages to the pages.
	pause = 250 * time.Millisecond
	// manyServices is how many Services a message has at most; if more changed, pages load all again.
	manyServices = 500
	// remembered is how many messages a page may have missed between its load and its stream.
	remembered = 64
	// waiting is how many messages may wait for a page that does not read.
	waiting = 8
)

// hub tells the pages that are open what changed. One goroutine serves all of them, and there is none while no page is open.
type hub struct {
	source Source
	ring   *changes.Ring

	mu      sync.Mutex
	streams map[*stream]struct{}
	most    int // streams at a time
	end     context.CancelFunc
	history []message // the newest last
	rev     uint64
	made    int // messages, for tests
}

// message is what all pages get.
type message struct {
	after, rev uint64 // the changes that it has: those after the one, to the other
	text       []byte // a server-sent event
}

// stream is one page.
type stream struct {
	messages chan message
	missed   bool // messages, since it did not read
	cut      chan struct{}
}

// errFull is that so many pages are open as may be.
type errFull int

func (e errFull) Error() string {
	return fmt.Sprintf("%s are open already, as many as this proxy tells of changes: close one, or load this one again to see what is new", plural(int(e), "page", "pages"))
}

// join takes in a page that has all changes to since.
func (h *hub) join(since uint64) (*stream, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.streams) >= h.most {
		return nil, errFull(h.most)
	}
	if len(h.streams) == 0 {
		h.begin()
	}
	s := &stream{messages: make(chan message, waiting), cut: make(chan struct{})}
	h.streams[s] = struct{}{}
	h.catchUp(s, since)
	return s, nil
}

// begin starts the goroutine. h.mu is held.
func (h *hub) begin() {
	if h.streams == nil {
		h.streams = map[*stream]struct{}{}
	}
	ctx, end := context.WithCancel(context.Background())
	h.end, h.history = end, nil
	h.rev, _ = h.ring.Counts()
	go h.run(ctx, h.ring.Watch(ctx))
}

// catchUp gives a page what came since it was loaded. h.mu is held.
func (h *hub) catchUp(s *stream, since uint64) {
	if since == h.rev {
		return
	}
	i := slices.IndexFunc(h.history, func(m message) bool { return m.after <= since && since < m.rev })
	if i < 0 || len(h.history)-i > waiting {
		s.messages <- event(h.rev, h.rev, delta{Rev: h.rev, Again: true})
		return
	}
	for _, m := range h.history[i:] {
		s.messages <- m
	}
}

// leave is called once for each page that has joined.
func (h *hub) leave(s *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.streams, s)
	if len(h.streams) == 0 && h.end != nil {
		h.end()
		h.end, h.history = nil, nil
	}
}

// cutAll ends all streams: the server closes.
func (h *hub) cutAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.streams {
		select {
		case <-s.cut:
		default:
			close(s.cut)
		}
	}
}

// run gathers what changed and tells it, until ctx ends. It takes a tenth of its time at most.
func (h *hub) run(ctx context.Context, news <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-news:
		}
		begun := time.Now()
		h.publish(ctx)
		rest := time.NewTimer(max(pause, 9*time.Since(begun)))
		select {
		case <-ctx.Done():
			rest.Stop()
			return
		case <-rest.C:
		}
	}
}

// publish tells the pages what has come since the last time.
func (h *hub) publish(ctx context.Context) {
	h.mu.Lock()
	after := h.rev
	h.mu.Unlock()
	entries, newest := h.ring.After(after)
	if newest == after {
		return
	}
	d := h.delta(entries, newest-after)
	now := headOf(h.source.Status())
	d.Rev, d.Head = newest, &now
	m := event(after, newest, d)
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil { // another one runs
		return
	}
	h.rev = newest
	h.made++
	h.history = append(h.history, m)
	if len(h.history) > remembered {
		h.history = slices.Delete(h.history, 0, len(h.history)-remembered)
	}
	for s := range h.streams {
		if s.missed {
			continue // it will be told, see next
		}
		select {
		case s.messages <- m:
		default:
			s.missed = true
		}
	}
}

// delta says what entries mean for the table. So many should they be.
func (h *hub) delta(entries []changes.Entry, want uint64) delta {
	names := map[string]bool{}
	for _, e := range entries {
		switch {
		case e.Service.Name != "":
			names[e.Service.String()] = true
		case e.Kind != changes.Mended && e.Kind != changes.Failed:
			return delta{Again: true}
		}
	}
	if len(names) > manyServices || uint64(len(entries)) < want {
		return delta{Again: true}
	}
	var d delta
	list := slices.Sorted(maps.Keys(names))
	for _, i := range itemsOf(h.source.Some(list)) {
		d.Some = append(d.Some, i.row())
		delete(names, i.Name)
	}
	for _, name := range list {
		if names[name] {
			d.Gone = append(d.Gone, name)
		}
	}
	return d
}

// caughtUp is called when a page has read all that waited for it: what it missed is told at once.
func (h *hub) caughtUp(s *stream) (message, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !s.missed || len(s.messages) > 0 {
		return message{}, false
	}
	s.missed = false
	return event(h.rev, h.rev, delta{Rev: h.rev, Again: true}), true
}

// event is a delta as a server-sent event.
func event(after, rev uint64, d delta) message {
	text, err := json.Marshal(d)
	if err != nil { // strings and numbers alone
		panic(fmt.Sprintf("ui: %v", err))
	}
	return message{after, rev, fmt.Appendf(nil, "id: %d\nevent: change\ndata: %s\n\n", rev, text)}
}
