//go:build linux

package ebpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"kube-proxy/internal/ratelimit"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/ebpf/bpf"
)

// reasons are what calls of programs fail for, in the order of the programs.
var reasons = [...]string{1: "reject", 2: "drop", 3: "bind"}

// witness logs a sample of the calls that are refused: one a second of a network namespace, and few
// to the Services of a Kubernetes namespace, because a tenant may make many of both.
type witness struct {
	in   *ringbuf.Reader
	done sync.WaitGroup
}

func newWitness(m *ebpf.Map, serviceOf func(bpf.LBFront) string, log *slog.Logger) (*witness, error) {
	in, err := ringbuf.NewReader(m)
	if err != nil {
		return nil, fmt.Errorf("read refusals: %w", err)
	}
	w, few := &witness{in: in}, ratelimit.New(log, "Refused call")
	w.done.Go(func() {
		for {
			r, err := in.Read()
			if errors.Is(err, ringbuf.ErrClosed) {
				return
			}
			var is bpf.LBRefusal
			if err == nil {
				err = binary.Read(bytes.NewReader(r.RawSample), binary.NativeEndian, &is)
			}
			if err != nil {
				log.Warn("Failed to read refused calls of programs", "err", err)
				return
			}
			service := serviceOf(is.Front)
			if namespace, _, _ := strings.Cut(service, "/"); few.Allow(namespace) {
				log.Info(refusedWords(is), append(refusedArgs(is), "service", service)...)
			}
		}
	})
	return w, nil
}

func (w *witness) close() error {
	if w == nil {
		return nil
	}
	err := w.in.Close()
	w.done.Wait()
	return err
}

func refusedWords(r bpf.LBRefusal) string {
	if r.Reason == 3 {
		return "Refused bind() to the port of a NodePort"
	}
	return "Refused a connection to a Service; others of this network namespace in the same second are not logged"
}

func refusedArgs(r bpf.LBRefusal) []any {
	var comm []byte
	for _, c := range r.Comm {
		if c == 0 {
			break
		}
		comm = append(comm, byte(c))
	}
	args := []any{"to", placeOf(r.Front.Addr, r.Front.Port), "protocol", lb.Proto(r.Front.Proto), "program",
		string(comm),
		"pid", r.Pid, "cgroup", r.Cgroup, "netns", r.Netns}
	if int(r.Reason) < len(reasons) {
		args = append(args, "why", reasons[r.Reason])
	}
	return args
}

// measureRefusals emits how many calls were refused.
func measureRefusals(m *ebpf.Map, emit mode.Emit) error {
	for reason := 1; reason < len(reasons); reason++ {
		n, err := total(m, uint32(reason))
		if err != nil {
			return fmt.Errorf("read the number of refused calls: %w", err)
		}
		emit(refusalsTotal, float64(n), reasons[reason])
	}
	return nil
}

// total adds up what the CPUs counted.
func total(m *ebpf.Map, key uint32) (n uint64, err error) {
	var each []uint64
	err = m.Lookup(key, &each)
	for _, one := range each {
		n += one
	}
	return n, err
}

// encode and decode turn values of the programs into the kernel's bytes and back.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	err := binary.Write(&b, binary.NativeEndian, v)
	return b.Bytes(), err
}
