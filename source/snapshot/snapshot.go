package snapshot

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"kube-proxy/cluster"
)

// MaxSize bounds a file, in bytes; 100,000 Services with 10 endpoints each take 26 MB. It is
// checked before any memory is taken.
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

// A file is the magic text, the format number, the messages and the SHA-256 of all that.
const magic = "kube-proxy snapshot\n"

const headSize = len(magic) + 4

// Saved is what a write has come to.
type Saved struct {
	// Size is what was written, in bytes, also where the write failed.
	Size int64
	// LeftOut are the namespaces that had no room for all their Services: those with the most
	// facts.
	LeftOut []string
}

// encode writes the facts of a store. It takes the memory of the names of the Services, of the
// places and of one Service, and holds the store only for a look at one at a time.
func encode(to io.Writer, o Origin, store *cluster.Store) (saved Saved, err error) {
	sum := sha256.New()
	out := bufio.NewWriterSize(io.MultiWriter(sum, to), 64<<10)
	content := bytes.NewBuffer(binary.BigEndian.AppendUint32([]byte(magic), format))
	flush := func() error {
		n, err := content.WriteTo(out)
		saved.Size += n
		return err
	}
	messages, known, facts := gob.NewEncoder(content), places{}, store.Facts()
	facts.Own, facts.Unreachable = nil, cluster.Unreachable{} // the next process asks the kernel, and probes
	if err := messages.Encode(message{Origin: &o, Facts: &facts}); err != nil {
		return saved, err
	}
	for _, name := range smallFirst(store) {
		v := store.View(name)
		if v.Service == nil { // it has gone since
			continue
		}
		if err := flush(); err != nil {
			return saved, err
		}
		m := known.message(v)
		if err := messages.Encode(m); err != nil {
			return saved, err
		}
		if saved.Size+int64(content.Len())+sha256.Size > MaxSize {
			content.Reset()
			known.takeBack(m)
			if n := len(saved.LeftOut); n == 0 || saved.LeftOut[n-1] != name.Namespace {
				saved.LeftOut = append(saved.LeftOut, name.Namespace)
			}
		}
	}
	if err := errors.Join(flush(), out.Flush()); err != nil {
		return saved, err
	}
	saved.Size += sha256.Size
	_, err = to.Write(sum.Sum(nil))
	return saved, err
}

// smallFirst returns the names of all Services, those of namespaces with few facts first: the last
// may find no room.
func smallFirst(store *cluster.Store) []cluster.Name {
	names, weight := store.Names(), map[string]int{}
	for _, n := range names {
		store.Look(n, func(v cluster.View) {
			weight[n.Namespace]++
			for _, s := range v.Slices {
				weight[n.Namespace] += 1 + s.Endpoints.Len()
			}
		})
	}
	slices.SortFunc(names, func(a, b cluster.Name) int {
		return cmp.Or(cmp.Compare(weight[a.Namespace], weight[b.Namespace]), strings.Compare(a.Namespace, b.Namespace))
	})
	return names
}

// decode reads a file of a size. It takes memory only for a size in bounds.
func decode(from io.Reader, size int64) (*Snapshot, error) {
	if size > MaxSize {
		return nil, fmt.Errorf("it has %d bytes; the limit is %d", size, MaxSize)
	}
	content := make([]byte, size)
	if _, err := io.ReadFull(from, content); err != nil {
		return nil, fmt.Errorf("read it: %w", err)
	}
	if len(content) < headSize || string(content[:len(magic)]) != magic {
		return nil, errors.New("it is not a snapshot")
	}
	if of := binary.BigEndian.Uint32(content[len(magic):]); of != format {
		return nil, fmt.Errorf("it has format %d; this version reads format %d", of, format)
	}
	end := len(content) - sha256.Size
	if end < headSize || sha256.Sum256(content[:end]) != [sha256.Size]byte(content[end:]) {
		return nil, errors.New("its checksum does not match: it is torn or was altered")
	}
	return read(content[headSize:end])
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
