package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"kube-proxy/lb"
)

func number(i int) lb.Key { return lb.Key{Port: uint16(i), Proto: lb.TCP} }

func one(lb.Key) int { return 1 }

// Every pushed key comes out once, and does come out in the end.
func TestQueueLosesNothing(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		var q queue[lb.Key]
		waits := map[lb.Key]bool{}
		take := func() {
			weight := 1 + rnd.IntN(40)
			of := func(k lb.Key) int { return 1 + int(k.Port)%5 }
			keys, sum := q.take(weight, of), 0
			for _, k := range keys {
				sum += of(k)
			}
			if sum > weight+2*5 || len(keys) == 0 != (len(waits) == 0) {
				t.Fatalf("seed %d: a piece of %d weighs %d; %d keys of %d", seed, weight, sum, len(keys), len(waits))
			}
			for _, k := range keys {
				if !waits[k] {
					t.Fatalf("seed %d: %s came again", seed, k)
				}
				delete(waits, k)
			}
			if q.len() != len(waits) {
				t.Fatalf("seed %d: %d keys in the queue, want %d", seed, q.len(), len(waits))
			}
		}
		for range 300 {
			k := number(rnd.IntN(100))
			service := fmt.Sprintf("ns%d", k.Port%7)
			switch rnd.IntN(10) {
			case 0:
				take()
			case 1, 2:
				q.later(k, service)
				waits[k] = true
			default:
				q.push(k, service)
				waits[k] = true
			}
		}
		for range 1000 {
			take()
		}
		if len(waits) > 0 || q.backlog.ring != nil || q.fresh.ring != nil {
			t.Fatalf("seed %d: %d keys did not come: %+v", seed, len(waits), q)
		}
	}
}

// One tenant marks very many frontends again all the time: those of others are in the next piece,
// and his own come, too.
func TestQueueIsFair(t *testing.T) {
	var q queue[lb.Key]
	const rows, piece = 1000, 64
	came := map[lb.Key]int{}
	for round := range 100 {
		for i := range rows {
			q.push(number(i), "greedy")
		}
		other := number(rows + round)
		q.push(other, fmt.Sprintf("ns%d", round))
		found := false
		for _, k := range q.take(piece, one) {
			came[k]++
			found = found || k == other
		}
		if !found {
			t.Fatalf("round %d: a row beside %d others had to wait", round, rows)
		}
	}
	if len(came) < rows {
		t.Errorf("of %d rows that were marked again and again %d never came", rows, rows-len(came))
	}
	if n := len(q.backlog.at["greedy"].keys); n > rows {
		t.Errorf("%d keys remembered for %d rows", n, rows)
	}
}

// One tenant marks large frontends again all the time, more than fit in a piece. The small change
// of another does not wait until a full piece is written: it goes ahead alone. So do small changes
// that never end, but every second piece is a full one (TN-33).
func TestQueueFewGoAhead(t *testing.T) {
	const rows, heavy, piece = 100, 50, 100
	for _, backlog := range []bool{false, true} {
		var q queue[lb.Key]
		of := func(k lb.Key) int {
			if k.Port < rows {
				return heavy
			}
			return 1
		}
		pushed := 0
		push := func() lb.Key {
			for i := range rows {
				if backlog {
					q.later(number(i), "greedy")
				} else {
					q.push(number(i), "greedy")
				}
			}
			pushed++
			k := number(rows + pushed)
			q.push(k, fmt.Sprintf("ns%d", pushed%3))
			return k
		}
		for round := range 20 {
			k := push()
			if got := q.take(piece, of); !slices.Equal(got, []lb.Key{k}) {
				t.Fatalf("round %d, backlog %t: the piece with a small change has %d keys, %v; want only that",
					round, backlog, len(got), got)
			}
			k = push()
			sum := 0
			got := q.take(piece, of)
			for _, k := range got {
				sum += of(k)
			}
			if sum < piece || !slices.Contains(got, k) {
				t.Fatalf("round %d, backlog %t: the next piece weighs %d; want a full one with the other small change",
					round, backlog, sum)
			}
		}
	}
}

// All that fits in a piece is one, also if a namespace has many keys and another has few: each
// write has a cost of its own.
func TestQueueTakesAllThatFits(t *testing.T) {
	var q queue[lb.Key]
	for i := range 60 {
		q.push(number(i), "many")
		q.later(number(i), "many") // counts once
	}
	q.push(number(100), "few")
	if got := q.take(64, one); len(got) != 61 {
		t.Errorf("%d keys in the first piece, want all 61", len(got))
	}
}

// Postponed keys get their share of each piece, however many new ones arrive.
func TestQueueBacklogIsNotStarved(t *testing.T) {
	var q queue[lb.Key]
	const postponed = 200
	for i := range postponed {
		q.later(number(i), "slow")
	}
	next := postponed
	for round := 0; ; round++ {
		if _, waits := q.waits[number(postponed-1)]; !waits {
			break
		}
		if round == 10*postponed/50 {
			t.Fatal("the last key did not come")
		}
		for range 500 {
			next++
			q.push(number(next), fmt.Sprintf("ns%d", next%9))
		}
		q.take(100, one)
	}
}
