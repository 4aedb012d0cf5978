//go:build linux

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"kube-proxy/internal/sockets"
	"kube-proxy/lb"
	"kube-proxy/plane/ebpf/bpf"
)

// ender ends sockets. From Linux 6.5 on programs do: they walk the sockets of a namespace and end
// those with the cookies that it names. Before, sock_diag does, which finds a socket by its
// addresses; of several with the same, by SO_REUSEPORT, it may find another one, and ends none.
type ender struct {
	obj *ebpf.Collection // nil before Linux 6.5
}

// newEnder returns an error if the kernel ends sockets in neither way.
func newEnder() (*ender, error) {
	obj, err := loadIterator(nil, "end_udp", "end_tcp")
	if err == nil {
		return &ender{obj}, nil
	}
	if err = sockets.CanDestroy(context.Background()); err != nil {
		return nil, err
	}
	return &ender{}, nil
}

func (e *ender) close() {
	if e.obj != nil {
		e.obj.Close()
	}
}

// destroy ends sockets, each in its network namespace, and returns how many it ended.
func (e *ender) destroy(ctx context.Context, found []bpf.StaleStale) (ended int, err error) {
	byNamespace := map[uint32][]sockets.Connected{}
	for _, s := range found {
		byNamespace[s.Netns] = append(byNamespace[s.Netns], connectedOf(s))
	}
	left, err := inNamespaces(byNamespace, inodeOf, func(all []sockets.Connected) error {
		n, err := e.end(ctx, all)
		ended += n
		return err
	})
	if left > 0 {
		err = errors.Join(err, fmt.Errorf("%d network namespaces have no file in /run/netns or /proc "+
			"(in a container, set hostPID or mount the host's /run/netns)", left))
	}
	return ended, err
}

// end ends sockets of the calling thread's network namespace, and returns how many.
func (e *ender) end(ctx context.Context, all []sockets.Connected) (ended int, err error) {
	if e.obj == nil {
		return sockets.Destroy(ctx, all)
	}
	for some := range slices.Chunk(all, int(e.obj.Maps["ending"].MaxEntries())) {
		n, err := e.endSome(some)
		ended += n
		if err != nil || ctx.Err() != nil {
			return ended, errors.Join(err, ctx.Err())
		}
	}
	return ended, nil
}

// endSome ends as many sockets as the map has room for.
func (e *ender) endSome(all []sockets.Connected) (ended int, err error) {
	ending, programs := e.obj.Maps["ending"], map[*ebpf.Program]bool{}
	for _, s := range all {
		err = errors.Join(err, ending.Put(s.Cookie, uint32(0)))
		programs[e.obj.Programs[map[lb.Proto]string{lb.UDP: "end_udp", lb.TCP: "end_tcp"}[s.Proto]]] = true
	}
	for program := range programs {
		err = errors.Join(err, iterate(program, nil, func(*uint64) { ended++ }))
	}
	for _, s := range all {
		if e := ending.Delete(s.Cookie); !errors.Is(e, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, e)
		}
	}
	if err != nil {
		return ended, fmt.Errorf("end sockets by an eBPF program: %w", err)
	}
	return ended, nil
}
