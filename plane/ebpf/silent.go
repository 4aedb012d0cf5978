//go:build linux

package ebpf

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"

	"kube-proxy/failover"
	"kube-proxy/lb"
	"kube-proxy/plane/ebpf/bpf"
)

// Unanswered reports, and ends, waits for endpoints: a control.NoticeSource and a control.Rescuer.
type Unanswered interface {
	Run(ctx context.Context, each func(failover.Notice)) error
	Rescue(ctx context.Context, endpoints []failover.Endpoint) (rescued int, err error)
	ResetConnections(ctx context.Context, endpoints []failover.Endpoint) (ended int, err error)
}

// Run implements control.NoticeSource for the sockets that the programs connect, and for the packet
// path.
func (p *Plane) Run(ctx context.Context, each func(failover.Notice)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var others sync.WaitGroup
	defer others.Wait()
	others.Go(func() { p.watchSockets(ctx, each) })
	err := p.PacketPath.Run(ctx, each)
	stop()
	return err
}

// watchRetry is the time until a watch that failed is tried again.
const watchRetry = time.Second

// watchSockets reports sockets until ctx ends. The programs may come, go and come back with other
// maps.
func (p *Plane) watchSockets(ctx context.Context, each func(failover.Notice)) {
	var watch *silence
	defer func() { watch.close() }()
	for said := ""; ; {
		next, err := p.watchMaps(watch, each)
		watch = next
		if err != nil && err.Error() != said {
			said = err.Error()
			p.cfg.Log.Warn("Unanswered connections of sockets are not reported, retrying", "err", err)
		}
		var retry <-chan time.Time
		if err != nil {
			retry = time.After(watchRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.remade:
		case <-retry:
		}
	}
}

// watchMaps returns a watch of the present maps: the given one, if it has them.
func (p *Plane) watchMaps(have *silence, each func(failover.Notice)) (*silence, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	var id ebpf.MapID
	if p.kernel != nil {
		info, err := p.kernel.obj.Connected.Info()
		if err != nil {
			return have, fmt.Errorf("read the identity of a map: %w", err)
		}
		id, _ = info.ID()
	}
	if have != nil && have.of == id {
		return have, nil
	}
	have.close()
	if p.kernel == nil {
		return nil, nil
	}
	return p.newSilence(id, each)
}

// silence reports sockets whose first packet is sent again.
type silence struct {
	of   ebpf.MapID // of the sockets' storage
	obj  *ebpf.Collection
	link link.Link
	in   *ringbuf.Reader
	done sync.WaitGroup
}

// newSilence attaches a program to the cgroup. The kernel detaches it when this process ends.
func (p *Plane) newSilence(of ebpf.MapID, each func(failover.Notice)) (_ *silence, err error) {
	spec, err := bpf.LoadSilent()
	if err != nil {
		return nil, fmt.Errorf("read the program that reports sockets: %w", err)
	}
	for m := range spec.Maps { // of the headers
		if m != "connected" && m != "silences" && m != "reported" && !strings.HasPrefix(m, ".") {
			delete(spec.Maps, m)
		}
	}
	s := &silence{of: of}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	s.obj, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{
		MapReplacements: map[string]*ebpf.Map{"connected": p.kernel.obj.Connected}})
	if err != nil {
		return nil, fmt.Errorf("load the program that reports sockets: %w", explain(err))
	}
	if s.in, err = ringbuf.NewReader(s.obj.Maps["silences"]); err != nil {
		return nil, fmt.Errorf("read the reports of sockets: %w", err)
	}
	s.link, err = link.AttachCgroup(link.CgroupOptions{Path: p.cfg.Cgroup, Attach: ebpf.AttachCGroupSockOps,
		Program: s.obj.Programs["retransmits"]})
	if err != nil {
		return nil, fmt.Errorf("attach the program that reports sockets to the cgroup %s: %w", p.cfg.Cgroup, err)
	}
	s.done.Go(func() {
		if err := s.earlier(each); err != nil {
			p.cfg.Log.Warn("Connections that sockets began before are not reported", "err", err)
		}
		s.read(each)
	})
	return s, nil
}

// earlier reports the sockets that began to connect before the program was attached, because the
// kernel calls it for none of them. Some of them may not wait for long yet.
func (s *silence) earlier(each func(failover.Notice)) error {
	obj, err := loadIterator(nil, "find_tcp")
	if err != nil {
		return err
	}
	defer obj.Close()
	all := map[failover.Notice]bool{}
	err = iterate(obj.Programs["find_tcp"], s.obj.Maps["connected"], func(is *bpf.StaleStale) {
		if is.State == tcpSynSent {
			all[noticeOf(is.Peer.BackendAddr, is.Peer.BackendPort, is.Peer.Addr, is.Peer.Port)] = true
		}
	})
	for n := range all {
		each(n)
	}
	return err
}

func (s *silence) read(each func(failover.Notice)) {
	for {
		r, err := s.in.Read()
		var is bpf.SilentSilent
		if err == nil {
			err = binary.Read(bytes.NewReader(r.RawSample), binary.NativeEndian, &is)
		}
		if err != nil {
			return // it is closed
		}
		each(noticeOf(is.BackendAddr, is.BackendPort, is.Addr, is.Port))
	}
}

func noticeOf(backend [4]uint32, backendPort uint16, front [4]uint32, port uint16) failover.Notice {
	return failover.Notice{Kind: failover.Retransmission, Proto: lb.TCP,
		Endpoint: placeOf(backend, backendPort), Frontend: placeOf(front, port)}
}

func (s *silence) close() {
	if s == nil {
		return
	}
	if s.link != nil {
		s.link.Close()
	}
	if s.in != nil {
		s.in.Close()
	}
	s.done.Wait()
	if s.obj != nil {
		s.obj.Close()
	}
}

// The states of TCP sockets (BPF_TCP_*).
const (
	tcpEstablished = 1
	tcpSynSent     = 2
)

// Rescue implements control.Rescuer. A socket keeps its endpoint, so connect() fails with
// ECONNABORTED, and its program may try again.
func (p *Plane) Rescue(ctx context.Context, endpoints []failover.Endpoint) (rescued int, err error) {
	rescued, err = p.PacketPath.Rescue(ctx, endpoints)
	ended, failed := p.endSockets(ctx, endpoints, tcpSynSent)
	return rescued + ended, errors.Join(err, failed)
}

// ResetConnections implements control.Rescuer. The next call of a socket's program fails with
// ECONNABORTED.
func (p *Plane) ResetConnections(ctx context.Context, endpoints []failover.Endpoint) (ended int, err error) {
	ended, err = p.PacketPath.ResetConnections(ctx, endpoints)
	more, failed := p.endSockets(ctx, endpoints, tcpEstablished)
	return ended + more, errors.Join(err, failed)
}

// storage opens the storage of sockets; nil if the packet path serves all.
func (p *Plane) storage() (*ebpf.Map, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.kernel == nil {
		return nil, nil
	}
	m, err := p.kernel.obj.Connected.Clone()
	if err != nil {
		return nil, fmt.Errorf("open the storage of sockets: %w", err)
	}
	return m, nil
}

// endSockets ends the TCP sockets in a state that the programs connected to the endpoints.
func (p *Plane) endSockets(ctx context.Context, endpoints []failover.Endpoint, state uint32) (ended int, err error) {
	there := map[netip.AddrPort]bool{}
	for _, e := range endpoints {
		there[e.Addr] = there[e.Addr] || e.Proto == lb.TCP
	}
	storage, err := p.storage()
	if err != nil || storage == nil {
		return 0, err
	}
	defer storage.Close()
	obj, err := loadIterator(nil, "find_tcp")
	if err != nil {
		return 0, fmt.Errorf("end sockets to unreachable endpoints: %w", err)
	}
	defer obj.Close()
	var found []bpf.StaleStale
	err = iterate(obj.Programs["find_tcp"], storage, func(s *bpf.StaleStale) {
		if s.State == state && there[placeOf(s.Peer.BackendAddr, s.Peer.BackendPort)] {
			found = append(found, *s)
		}
	})
	if err == nil && len(found) > 0 {
		var e *ender
		if e, err = newEnder(); err == nil {
			ended, err = e.destroy(ctx, found)
			e.close()
		}
	}
	if err != nil {
		err = fmt.Errorf("end sockets to unreachable endpoints: %w", err)
	}
	return ended, err
}
