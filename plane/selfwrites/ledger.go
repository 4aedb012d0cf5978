// Package selfwrites lets the planes of one process distinguish their own writes from foreign ones.
// A process has a plane for each IP family, and the kernel counts and reports the changes of both
// together. Without the ledger, a plane would search for damage after each write of the other.
//
// The creator of planes passes the same [Ledger] to all of one network namespace.
package selfwrites

import (
	"errors"
	"slices"
	"sync"
)

// Ledger is shared by the planes of this process in one network namespace. The zero Ledger is ready
// for use; it must not be copied.
type Ledger struct {
	writing   sync.RWMutex // writers share it; Others and large writes lock it exclusively
	mu        sync.Mutex
	count     uint32
	quiet     int // calls of WriteQuietly in progress
	listeners []Listener
}

// Listener receives the kernel's notifications of changes.
type Listener interface {
	// Listen starts or ends the subscription.
	Listen(on bool) error
	// Missed reports that another program made changes while the listener was off.
	Missed()
}

// Generation returns the kernel's number of the ruleset, which each transaction of any program
// increments.
type Generation func() (uint32, error)

// Write runs write, which makes that many transactions if it succeeds.
func (l *Ledger) Write(transactions int, write func() error) error {
	l.writing.RLock()
	defer l.writing.RUnlock()
	if err := write(); err != nil {
		return err
	}
	l.wrote(transactions)
	return nil
}

// WriteQuietly is Write for listeners that only learn who else writes. None of them listens
// meanwhile, so the kernel writes no notification of it, and they miss those of other programs.
func (l *Ledger) WriteQuietly(transactions int, write func() error) error {
	l.hush(1)
	defer l.hush(-1)
	return l.Write(transactions, write)
}

// hush counts writes in progress: the first turns the listeners off, and the last one on again.
func (l *Ledger) hush(more int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.quiet
	l.quiet += more
	if before != 0 && l.quiet != 0 {
		return
	}
	for _, x := range l.listeners {
		if x.Listen(l.quiet == 0) != nil {
			x.Missed()
		}
	}
}

func (l *Ledger) wrote(transactions int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count += uint32(transactions)
}

// Others returns the generation minus our own writes: while it stays the same, no other program
// changed anything. It waits until no write of ours is in progress. Only the difference between two
// results has a meaning.
func (l *Ledger) Others(generation Generation) (uint32, error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	g, err := generation()
	return g - l.count, err
}

// Join registers a listener, which is then off during the large writes of all planes.
func (l *Ledger) Join(x Listener) {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listeners = append(l.listeners, x)
}

// Leave is the opposite of Join.
func (l *Ledger) Leave(x Listener) {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listeners = slices.DeleteFunc(l.listeners, func(y Listener) bool { return x == y })
}

// WriteUnnoticed runs a large write of one transaction while none of our listeners listens. It
// calls Missed of those listeners that missed foreign changes in that time.
//
// If any program on the machine listens, in any namespace, the kernel writes a notification for
// each element of a transaction, and keeps it until the commit, 4 KiB each. With 100,000 services
// that is 5 GB for a moment, and twice the time. No other plane writes meanwhile; the kernel too
// accepts only one transaction at a time in a network namespace.
func (l *Ledger) WriteUnnoticed(generation Generation, write func() error) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	own, err := generation()
	if err != nil {
		return err
	}
	var failed error
	for _, x := range l.listeners {
		failed = errors.Join(failed, x.Listen(false))
	}
	if failed == nil {
		failed = write()
		if failed == nil {
			own++
			l.wrote(1)
		}
	}
	for _, x := range l.listeners {
		failed = errors.Join(failed, x.Listen(true))
	}
	if after, err := generation(); err != nil || after != own {
		for _, x := range l.listeners {
			x.Missed()
		}
	}
	return failed
}
