package snapshot

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"kube-proxy/cluster"
)

// MaxSize bounds the content of a file, in bytes; 100,000 Services with 10 endpoints each take 16
// MB. It is checked before any memory is taken.
const MaxSize = 64 << 20

// maxSkew is how far the clock may have gone back since a snapshot was written.
const maxSkew = time.Hour

// ErrNone says that the directory has no snapshot.
var ErrNone = errors.New("not found")

// Origin says where and when facts were written.
type Origin struct {
	// Node is the name of the node whose facts these are.
	Node    string
	Written time.Time
	// Boot identifies the kernel state that had the rules of these facts: if it still exists, so do
	// the rules.
	Boot string
	// Mode is the mode that the Node's annotation asked for; "" for none.
	Mode string
}

// Snapshot is the facts of a node at one time.
type Snapshot struct {
	Origin
	facts    cluster.Facts
	services []*cluster.Service
	slices   []*cluster.Slice
}

// Services returns the number of Services.
func (s *Snapshot) Services() int { return len(s.services) }

// Events returns the facts as a source gives them, complete lists included.
func (s *Snapshot) Events() cluster.Batch {
	all := cluster.Batch{cluster.APIServerAt{Addrs: s.facts.APIServers}}
	if s.facts.Node != nil {
		all = append(all, cluster.NodeSet{Node: s.facts.Node})
	}
	if s.facts.NodeGone {
		all = append(all, cluster.NodeGone{Name: s.Node})
	}
	network := []*cluster.ServiceCIDR{{Name: "snapshot", Prefixes: s.facts.CIDRs}}
	return append(all, cluster.CIDRsListed{CIDRs: network}, cluster.SlicesListed{Slices: s.slices},
		cluster.ServicesListed{Services: s.services})
}

// header stands before the content of a file.
type header struct {
	Magic  [20]byte
	Format uint32
	Length uint64 // of the content
	Sum    [sha256.Size]byte
}

var (
	magic      = [20]byte([]byte("kube-proxy snapshot\n"))
	headerSize = binary.Size(header{})
)

// Saved is what a write has come to.
type Saved struct {
	// Size is what was written, in bytes, also where the write failed.
	Size int64
	// LeftOut are the namespaces that had no room, sorted: those with the most facts.
	LeftOut []string
}

// limited writes MaxSize bytes at most, and counts further ones.
type limited struct {
	io.Writer
	n int64
}

func (l *limited) Write(b []byte) (int, error) {
	if l.n += int64(len(b)); l.n > MaxSize {
		return len(b), nil
	}
	return l.Writer.Write(b)
}

// encode writes the facts of a store to a file. It takes the memory of the names of the Services
// and of one buffer, and holds the store only for a look at one Service at a time. Where the facts
// are too large it says which namespaces to leave out, and the file is of no use.
func encode(to io.WriteSeeker, o Origin, store *cluster.Store, without []string,
) (size int64, tooLarge []string, err error) {
	h := header{Magic: magic, Format: format}
	if err := writeHeader(to, h); err != nil { // the place of the one that knows length and sum
		return 0, nil, err
	}
	sum := sha256.New()
	content := &limited{Writer: io.MultiWriter(sum, to)}
	c := newWriter(content)
	c.origin(&o)
	facts := store.Facts()
	c.facts(&facts)
	sizes := map[string]int64{}
	more := true
	for _, name := range store.Names() {
		v := store.View(name)
		if v.Service == nil || slices.Contains(without, name.Namespace) { // or it has gone since
			continue
		}
		before := content.n + int64(c.out.Buffered())
		c.entry(&more, v.Service, &v.Slices)
		sizes[name.Namespace] += content.n + int64(c.out.Buffered()) - before
		if c.err != nil {
			return content.n, nil, c.err
		}
	}
	more = false
	c.entry(&more, nil, nil)
	if err := errors.Join(c.err, c.out.Flush()); err != nil {
		return content.n, nil, err
	}
	if content.n > MaxSize {
		return MaxSize, largest(sizes, content.n-MaxSize), nil
	}
	h.Length, h.Sum = uint64(content.n), [sha256.Size]byte(sum.Sum(nil))
	return int64(headerSize) + content.n, nil, writeHeader(to, h)
}

func writeHeader(to io.WriteSeeker, h header) error {
	if _, err := to.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return binary.Write(to, binary.BigEndian, h)
}

// largest returns the largest namespaces that are more than excess together, and one in any case.
func largest(sizes map[string]int64, excess int64) (all []string) {
	// The texts that others share with them are spelled elsewhere then.
	excess += MaxSize / 8
	bySize := func(a, b string) int { return cmp.Compare(sizes[b], sizes[a]) }
	for _, namespace := range slices.SortedFunc(maps.Keys(sizes), bySize) {
		all = append(all, namespace)
		if excess -= sizes[namespace]; excess < 0 {
			break
		}
	}
	return all
}

// decode reads a file of a size. It takes memory only for a content whose size is in bounds.
func decode(from io.Reader, size int64) (*Snapshot, error) {
	var h header
	switch err := binary.Read(from, binary.BigEndian, &h); {
	case err != nil || h.Magic != magic:
		return nil, errors.New("it is not a snapshot")
	case h.Format != format:
		return nil, fmt.Errorf("it has format %d; this version reads format %d", h.Format, format)
	case h.Length > MaxSize:
		return nil, fmt.Errorf("it declares %d bytes; the limit is %d", h.Length, MaxSize)
	case int64(h.Length) != size-int64(headerSize):
		return nil, fmt.Errorf("it is torn: it declares %d bytes and has %d", h.Length, size-int64(headerSize))
	}
	content := make([]byte, h.Length)
	if _, err := io.ReadFull(from, content); err != nil {
		return nil, fmt.Errorf("read it: %w", err)
	}
	if sum := sha256.Sum256(content); !bytes.Equal(sum[:], h.Sum[:]) {
		return nil, errors.New("its checksum does not match: it was altered")
	}
	c := newReader(content)
	return c.snapshot(), c.err
}

// check says why a snapshot is not for this node now.
func (s *Snapshot) check(node string, maxAge time.Duration, now time.Time) error {
	switch age := now.Sub(s.Written); {
	case s.Node != node:
		return fmt.Errorf("it is of node %q, and this is node %q", s.Node, node)
	case age > maxAge:
		return fmt.Errorf("it is %v old; the limit is %v", age.Round(time.Second), maxAge)
	case age < -maxSkew:
		return fmt.Errorf("it was written %v ahead of this clock, so its age is unknown", (-age).Round(time.Second))
	}
	return nil
}
