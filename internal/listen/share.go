package listen

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
)

// Share is the number of the process's descriptors for connections and listeners that others cause.
type Share struct {
	Files       int // that the process may have open
	Connections int // of each of the three servers
	Listeners   int // of Services, in all
}

const (
	// ownFiles is the number for the process's own work: netlink, the API server, programs that it
	// runs, its log.
	ownFiles = 128
	// leastFiles is the minimum of each share, if the process may open fewer files than its own
	// work may need.
	leastFiles = 16
	// maxConnections bounds a server's memory: a connection takes some 20 KB, and its header
	// MaxHeaderBytes at most.
	maxConnections = 512
)

// MaxHeaderBytes is how long the header of a request may be, for [http.Server].
const MaxHeaderBytes = 32 << 10

// OwnShare returns the share of this process.
func OwnShare() Share { return shareOf(fileLimit()) }

// shareOf gives half of the descriptors beyond the process's own to listeners, and the rest to
// connections.
func shareOf(files uint64) Share {
	total := int(min(files, 1<<20))
	rest := max(total-ownFiles, 0)
	return Share{
		Files:       total,
		Listeners:   max(rest/2, leastFiles),
		Connections: min(max(rest/6, leastFiles), maxConnections),
	}
}

// Limited returns an [Open] that fails while so many of the listeners that it has opened are open
// as s allows.
func (s Share) Limited(open func(context.Context, Address) (net.Listener, error)) func(context.Context,
	Address) (net.Listener, error) {
	var now atomic.Int64
	return func(ctx context.Context, p Address) (net.Listener, error) {
		if now.Add(1) > int64(s.Listeners) {
			now.Add(-1)
			return nil, fmt.Errorf("listen at %s: %d listeners are open, and the process may have %d files in all: "+
				"raise that limit (ulimit -n, LimitNOFILE)", p.At, s.Listeners, s.Files)
		}
		l, err := open(ctx, p)
		if err != nil {
			now.Add(-1)
			return nil, err
		}
		return &counted{Listener: l, closed: sync.OnceFunc(func() { now.Add(-1) })}, nil
	}
}

// counted is a listener that reports when it is closed.
type counted struct {
	net.Listener
	closed func()
}

// Close closes the listener.
func (c *counted) Close() error {
	defer c.closed()
	return c.Listener.Close()
}
