package ui

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"sync"
	"time"

	"kube-proxy/changes"
)

// listing is what the virtual list begins with.
type listing struct {
	Rev      uint64  `json:"rev"` // the newest change that it has
	Services [][]any `json:"services"`
}

// delta is what changed.
type delta struct {
	Rev   uint64   `json:"rev"`
	Some  [][]any  `json:"some,omitempty"`  // Services as they are now
	Gone  []string `json:"gone,omitempty"`  // names of those that are not any more
	Again bool     `json:"again,omitempty"` // so much that all is to be loaded again
	Head  *head    `json:"head,omitempty"`
}

// cache holds the whole listing, however many ask for it. While changes come all the time it is made anew only so often that it
// takes a tenth of one processor's time; who has an older one gets the rest as a delta.
type cache struct {
	source Source
	ring   *changes.Ring

	mu      sync.Mutex
	made    time.Time // zero: there is none
	cost    time.Duration
	rev     uint64
	all     []item
	plain   []byte
	zipped  []byte
	renders int // how often it was made, for tests
}

// forgetAfter is how long a listing is kept when nobody asks any more.
const forgetAfter = 30 * time.Second

// services returns all Services as of about now, and the number of the newest change that they surely have.
func (c *cache) services() ([]item, uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fresh()
	return c.all, c.rev
}

// fresh makes the listing anew if that is due. c.mu is held.
func (c *cache) fresh() {
	rev, _ := c.ring.Counts()
	begun := time.Now()
	if age := begun.Sub(c.made); !c.made.IsZero() && (c.ring != nil && c.rev == rev || age < 10*c.cost) {
		return
	}
	if c.made.IsZero() {
		time.AfterFunc(forgetAfter, c.forget)
	}
	c.all, c.plain, c.zipped, c.rev = itemsOf(c.source.Services()), nil, nil, rev
	c.made = time.Now()
	c.cost = c.made.Sub(begun)
}

// forget gives the memory back once nobody asked for a while.
func (c *cache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if age := time.Since(c.made); age < forgetAfter {
		time.AfterFunc(forgetAfter-age, c.forget)
		return
	}
	c.all, c.plain, c.zipped, c.made = nil, nil, nil, time.Time{}
}

// listing returns the JSON of all Services, plain or compressed.
func (c *cache) listing(zip bool) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fresh()
	if c.plain == nil {
		l := listing{Rev: c.rev, Services: make([][]any, len(c.all))}
		for i := range c.all {
			l.Services[i] = c.all[i].row()
		}
		var err error
		if c.plain, err = json.Marshal(l); err != nil {
			return nil, err
		}
		c.renders++
	}
	if !zip {
		return c.plain, nil
	}
	if c.zipped == nil {
		c.zipped = compressed(c.plain)
	}
	return c.zipped, nil
}

func compressed(b []byte) []byte {
	var out bytes.Buffer
	z, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed) // the level is one that there is
	z.Write(b)                                        // a buffer takes everything
	z.Close()
	return out.Bytes()
}
