package changes

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// pause is the least time between two notifications of a reader.
const pause = 100 * time.Millisecond

// news tells readers that there is something new. Who writes sets one flag; a goroutine, which there is only while somebody waits, tells
// the readers, so that neither their number nor their speed is felt by who writes.
type news struct {
	watched atomic.Bool
	wake    chan struct{} // has a value when something is new that no reader was told of

	mu      sync.Mutex
	readers map[chan struct{}]struct{}
	stop    context.CancelFunc
}

func (n *news) tell() {
	if !n.watched.Load() {
		return
	}
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// Watch returns a channel that has a value when entries came since it was read last, every 100 ms at most, until ctx ends. A reader
// that does not read costs nobody anything. Each channel has a value at the start. The channel of a nil Ring never has one.
func (r *Ring) Watch(ctx context.Context) <-chan struct{} {
	c := make(chan struct{}, 1)
	if r == nil {
		return c
	}
	c <- struct{}{}
	n := &r.news
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.readers) == 0 {
		n.readers = map[chan struct{}]struct{}{}
		var pump context.Context
		pump, n.stop = context.WithCancel(context.Background())
		n.watched.Store(true)
		go n.pump(pump)
	}
	n.readers[c] = struct{}{}
	context.AfterFunc(ctx, func() { n.leave(c) })
	return c
}

// leave forgets a reader; with the last the goroutine ends.
func (n *news) leave(c chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.readers, c)
	if len(n.readers) == 0 {
		n.watched.Store(false)
		n.stop()
	}
}

// pump tells all readers, and rests before it tells them again.
func (n *news) pump(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
		}
		n.mu.Lock()
		for c := range n.readers {
			select {
			case c <- struct{}{}:
			default:
			}
		}
		n.mu.Unlock()
		timer.Reset(pause)
	}
}
