package selfwrites

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// kernel counts transactions, and notifies subscribed listeners.
type kernel struct {
	mu         sync.Mutex
	generation uint32
	ears       []*ear
}

func (k *kernel) write() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.generation++
	for _, e := range k.ears {
		if e.on {
			e.noticed++
		}
	}
	return nil
}

func (k *kernel) ask() (uint32, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.generation, nil
}

type ear struct {
	on              bool
	noticed, missed int
	deafens         error
}

func (e *ear) Listen(on bool) error {
	if !on && e.deafens != nil {
		return e.deafens
	}
	e.on = on
	return nil
}

func (e *ear) Missed() { e.missed++ }

var errRefused = errors.New("refused")

// Only foreign writes change the result of Others, whichever plane writes, and whatever the result.
func TestOthers(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		k := &kernel{generation: rnd.Uint32()} // which wraps around
		var l Ledger
		before, _ := l.Others(k.ask)
		foreign := uint32(0)
		for range 50 {
			switch rnd.IntN(4) {
			case 0:
				n := rnd.IntN(4)
				if err := l.Write(n, func() error {
					for range n {
						k.write()
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			case 1:
				if err := l.Write(3, func() error { return errRefused }); err != errRefused {
					t.Fatal(err)
				}
			case 2:
				if err := l.WriteUnnoticed(k.ask, k.write); err != nil {
					t.Fatal(err)
				}
			default:
				k.write()
				foreign++
			}
			if now, _ := l.Others(k.ask); now-before != foreign {
				t.Fatalf("seed %d: others are said to have written %d times, they did %d times", seed, now-before,
					foreign)
			}
		}
	}
}

// Two of our writes need not wait for each other.
func TestTogether(t *testing.T) {
	k := &kernel{}
	var l Ledger
	var both, done sync.WaitGroup
	both.Add(2)
	for range 2 {
		done.Go(func() { l.Write(1, func() error { both.Done(); both.Wait(); return k.write() }) })
	}
	done.Wait()
	if n, _ := l.Others(k.ask); n != 0 {
		t.Errorf("others are said to have written %d times", n)
	}
}

// While any write is quiet no listener listens, and after the last one all do (ST-05).
func TestWriteQuietly(t *testing.T) {
	a, deaf := &ear{on: true}, &ear{on: true, deafens: errRefused}
	k := &kernel{ears: []*ear{a, deaf}}
	var l Ledger
	l.Join(a)
	l.Join(deaf)
	err := l.WriteQuietly(1, func() error {
		return l.WriteQuietly(1, func() error { return errors.Join(k.write(), k.write()) })
	})
	if err != nil || a.noticed != 0 || !a.on || deaf.missed != 1 {
		t.Errorf("%v: %+v, %+v", err, a, deaf)
	}
	if n, _ := l.Others(k.ask); n != 0 {
		t.Errorf("others are said to have written %d times", n)
	}
	k.write()
	if a.noticed != 1 {
		t.Error("it does not listen afterwards")
	}
}

// None of our listeners receives notifications of a large write, and all receive those of small
// ones. Missed is called for foreign changes meanwhile.
func TestWriteUnnoticed(t *testing.T) {
	a, b, gone := &ear{on: true}, &ear{on: true}, &ear{on: true}
	k := &kernel{ears: []*ear{a, b, gone}}
	var l Ledger
	for _, e := range k.ears {
		l.Join(e)
	}
	l.Leave(gone)
	if err := l.WriteUnnoticed(k.ask, k.write); err != nil {
		t.Fatal(err)
	}
	if a.noticed+a.missed+b.noticed+b.missed != 0 || gone.noticed != 1 {
		t.Errorf("after a large write of ours: %+v, %+v, one that had left: %+v", a, b, gone)
	}
	k.write()
	if a.noticed != 1 || b.noticed != 1 {
		t.Errorf("afterwards they do not listen: %+v, %+v", a, b)
	}
	if err := l.WriteUnnoticed(k.ask, func() error { k.write(); return k.write() }); err != nil {
		t.Fatal(err)
	}
	if a.missed != 1 || b.missed != 1 || gone.missed != 0 {
		t.Errorf("while we wrote another program did: %+v, %+v, one that had left: %+v", a, b, gone)
	}
	if err := l.WriteUnnoticed(k.ask, func() error { return errRefused }); !errors.Is(err, errRefused) {
		t.Error(err)
	}
	if a.missed != 1 {
		t.Error("a write that was refused counts as one")
	}
	// If the generation is unknown, or a subscription does not end, nothing is written, and all
	// listeners are on again.
	silent := func() (uint32, error) { return 0, errRefused }
	never := func() error { t.Error("written all the same"); return nil }
	if err := l.WriteUnnoticed(silent, never); err != errRefused {
		t.Error(err)
	}
	b.deafens = errRefused
	if err := l.WriteUnnoticed(k.ask, never); !errors.Is(err, errRefused) {
		t.Error(err)
	}
	if !a.on || !b.on {
		t.Error("a listener stayed deaf")
	}
}

// Concurrent writes and calls of Others, under the race detector: no call sees a write in progress.
func TestConcurrent(t *testing.T) {
	k := &kernel{}
	var l Ledger
	var half atomic.Int32
	write := func() error { half.Add(1); k.write(); half.Add(-1); return nil }
	first, _ := l.Others(k.ask)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				l.Write(1, write)
				l.WriteUnnoticed(k.ask, write)
				now, _ := l.Others(func() (uint32, error) {
					if n := half.Load(); n != 0 {
						t.Errorf("%d writes are half done", n)
					}
					return k.ask()
				})
				if now != first {
					t.Errorf("our own writes count as those of others: %d", now-first)
				}
			}
		})
	}
	wg.Wait()
}
