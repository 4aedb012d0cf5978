// Package ownwrites lets the planes of one process tell their own writes from those of others. A process has a plane for each
// IP family, and the kernel counts and announces the changes of both together: a plane that did not know of the other's writes
// would look for damage after each of them.
//
// Who makes the planes gives those of one network namespace the same [Ledger].
package ownwrites

import (
	"errors"
	"slices"
	"sync"
)

// Ledger is what the planes of this process share in one network namespace. The zero Ledger is ready; it must not be copied.
type Ledger struct {
	writing   sync.RWMutex // shared by those who write; alone has it who needs that none of us writes meanwhile
	mu        sync.Mutex
	count     uint32
	listeners []Listener
}

// Listener hears the kernel's notifications of changes.
type Listener interface {
	// Listen begins or ends the subscription.
	Listen(on bool) error
	// Missed says that others changed something while the listener could not hear of it.
	Missed()
}

// Generation asks the kernel for the number that each transaction of anybody makes one higher.
type Generation func() (uint32, error)

// Write runs a write that has so many transactions if it succeeds.
func (l *Ledger) Write(transactions int, write func() error) error {
	l.writing.RLock()
	defer l.writing.RUnlock()
	if err := write(); err != nil {
		return err
	}
	l.wrote(transactions)
	return nil
}

func (l *Ledger) wrote(transactions int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count += uint32(transactions)
}

// Others returns the generation less what we wrote: while it stays, nobody else changed anything. It waits until no write of
// ours is half done. Only the difference of two answers means something.
func (l *Ledger) Others(generation Generation) (uint32, error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	g, err := generation()
	return g - l.count, err
}

// Join has the listener be deaf during the large writes of all planes.
func (l *Ledger) Join(x Listener) {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.listeners = append(l.listeners, x)
}

// Leave is the opposite of Join.
func (l *Ledger) Leave(x Listener) {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.listeners = slices.DeleteFunc(l.listeners, func(y Listener) bool { return x == y })
}

// WriteUnheard runs a large write of one transaction while none of our listeners listens. Those that missed something because
// others wrote in that time are told.
//
// For each element of a transaction the kernel writes a notification, and keeps it until the commit, 4 KiB each, as soon as
// anybody on the machine listens, in whatever namespace: with 100,000 services 5 GB for a moment, and twice the time. No other
// plane writes meanwhile; the kernel too takes only one transaction at a time in a network namespace.
func (l *Ledger) WriteUnheard(generation Generation, write func() error) error {
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
		if failed = write(); failed == nil {
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
