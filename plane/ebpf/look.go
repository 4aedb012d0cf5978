//go:build linux

package ebpf

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf/link"

	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/ebpf/bpf"
	"kube-proxy/trace"
)

// TracePacket is part of mode.Tracer. For a client with a socket of this node it asks the programs
// first, as they are in the kernel; what they pass, and packets of others, meet the rules.
func (p *Plane) TracePacket(ctx context.Context, packet trace.Packet, walk mode.Walk) (k trace.Kernel, err error) {
	defer func() { k.Programs = p.programs() }()
	under, err := p.PacketPath.TracePacket(ctx, packet, walk)
	if err != nil || packet.Proto != lb.TCP && packet.Proto != lb.UDP {
		return under, err
	}
	class, ok, perhaps, err := p.classOf(ctx, packet)
	if err != nil {
		return trace.Kernel{}, fmt.Errorf("ebpf: follow a packet to %s: %w", packet.To, err)
	}
	if under.Perhaps = perhaps; !ok {
		under.Way = slices.Insert(under.Way, 0, "no socket of this node sends it: the eBPF programs do not see it")
		return under, nil
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	is, why, err := p.askPrograms(packet, class)
	if err != nil {
		return trace.Kernel{}, fmt.Errorf("ebpf: follow a connection to %s: %w", packet.To, err)
	}
	if under.Passed = why; why != "" {
		under.Way = slices.Insert(under.Way, 0, "socket: the eBPF programs pass it: "+why)
		return under, nil
	}
	return is, nil
}

// programs returns what is attached, of both families: a socket of IPv6 meets both. Nil if this
// plane's programs are not loaded.
func (p *Plane) programs() *trace.Programs {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.kernel == nil {
		return nil
	}
	is := &trace.Programs{Cgroup: p.kernel.cgroup}
	pins, _ := filepath.Glob(filepath.Join(p.cfg.Pins, "*", "link_*"))
	for _, pin := range pins {
		l, err := link.LoadPinnedLink(pin, nil)
		if err != nil {
			continue // it is named as not evaluated
		}
		if info, err := l.Info(); err == nil {
			is.IDs = append(is.IDs, uint32(info.Program))
		}
		l.Close()
	}
	return is
}

// rejects is what the programs do with a socket's call: REJECTS in bpf/maps.h.
const rejects = 1

// The classes of clients of the programs.
const (
	ofPods uint32 = iota
	ofHost
)

// classOf returns the class of the client, and whether it is on this node: itself, or a pod that no
// other node leads to. perhaps: it may be such a pod, but the node recognises none, or its route
// leads elsewhere.
func (p *Plane) classOf(ctx context.Context, packet trace.Packet) (class uint32, here, perhaps bool, err error) {
	if packet.Host {
		return ofHost, true, false, nil
	}
	p.mu.RLock()
	pods := p.node.Pods
	p.mu.RUnlock()
	r, err := p.addresses.lookup(ctx, packet.From.Addr())
	direct := err == nil && r.Errno == 0 && !r.Here() && !r.Gateway.IsValid()
	none := pods.Interface == "" && pods.InterfacePrefix == "" && len(pods.Prefixes) == 0
	known := recognises(pods, packet)
	return ofPods, direct && known, none || !direct && known, err
}

// askPrograms runs the loaded program with a question. why says why the programs pass the
// connection; "" if they do not.
func (p *Plane) askPrograms(packet trace.Packet, class uint32) (k trace.Kernel, why string, err error) {
	if p.kernel == nil {
		return k, "they are not loaded", nil
	}
	q := bpf.LBQuestion{Client: class, To: bpf.LBFront{Addr: addrOf(packet.To.Addr()),
		Port: bigEndian(packet.To.Port()), Proto: uint8(packet.Proto)}}
	if class == ofHost {
		q.Netns = p.cookie
	}
	a, err := p.kernel.ask(q)
	switch {
	case err != nil:
		return k, "", err
	case a.On == 0:
		return k, "they are switched off", nil
	case class == ofPods && p.kernel.scope() == scopeHost:
		return k, "they serve sockets of the node alone", nil
	case a.Found == 0:
		return k, "no frontend has the destination", nil
	case a.Refuses == rejects && packet.Proto == lb.TCP && setsErrors() == nil: // connect() of UDP sends nothing
		return trace.Kernel{Verdict: trace.Reject, Connected: true, Way: []string{
			"socket: an eBPF program lets connect() fail with ECONNREFUSED, and no packet is sent"}}, "", nil
	case a.Why != 0:
		return k, passages[a.Why].words, nil
	case a.Set == 0:
		return k, "the rules decide about this frontend", nil
	}
	t, err := openReading(&p.kernel.obj.LBMaps)
	if err != nil {
		return k, "", err
	}
	defer t.close()
	all := t.backendsOf(a.Set)
	for _, b := range all {
		if is, err := p.kernel.isFrontend(b, packet.Proto); err != nil {
			return k, "", err
		} else if is && a.Remembered == 0 {
			return k, passages[byEndpoint].words, nil
		}
	}
	return kernelAnswer(packet, a, all), "", nil
}

// isFrontend reports whether the programs take a backend for a frontend too.
func (k *kernel) isFrontend(b netip.AddrPort, proto lb.Proto) (bool, error) {
	a, err := k.ask(bpf.LBQuestion{Client: ofHost, To: bpf.LBFront{Addr: addrOf(b.Addr()), Port: bigEndian(b.Port()),
		Proto: uint8(proto)}})
	return a.Found != 0, err
}

// kernelAnswer says how sockets are connected to the backends of a set.
func kernelAnswer(packet trace.Packet, a bpf.LBQuestion, all []netip.AddrPort) trace.Kernel {
	k := trace.Kernel{Verdict: trace.Balance, Connected: true}
	shares := map[netip.AddrPort]float64{}
	for _, b := range all {
		shares[b] += 1 / float64(len(all))
	}
	for _, b := range slices.SortedFunc(maps.Keys(shares), netip.AddrPort.Compare) {
		k.Backends = append(k.Backends, trace.Backend{Address: b, Share: shares[b]})
	}
	if a.Remembered != 0 {
		k.Affine = placeOf(a.Backend.Addr, a.Backend.Port)
	}
	k.Way = []string{
		"socket: an eBPF program connects it; its packets are not translated",
		fmt.Sprintf("map frontends: %s/%s has set %d", packet.To, packet.Proto, a.Set),
		fmt.Sprintf("map sets: set %d has %d slots, each with a backend", a.Set, a.Count),
	}
	return k
}

// recognises reports whether the node takes the source for a pod.
func recognises(d lb.Detector, packet trace.Packet) bool {
	switch {
	case d.Interface != "":
		return packet.In == d.Interface
	case d.InterfacePrefix != "":
		return strings.HasPrefix(packet.In, d.InterfacePrefix)
	}
	return lb.Within(d.Prefixes, packet.From.Addr())
}

// ask runs the program that answers questions.
func (k *kernel) ask(q bpf.LBQuestion) (bpf.LBQuestion, error) {
	in, err := encode(q)
	if err != nil {
		return q, err
	}
	_, out, err := k.obj.Ask.Test(in)
	if err == nil {
		err = binary.Read(bytes.NewReader(out), binary.NativeEndian, &q)
	}
	if err != nil {
		return q, fmt.Errorf("run the eBPF program: %w", err)
	}
	return q, nil
}

// scope is whose sockets the programs serve: 0 for all.
func (k *kernel) scope() uint8 {
	s, _ := settingsIn(k.obj.Config) // an error shows at the next write
	return s.Scope
}

// Differences is part of mode.Tracer.
func (p *Plane) Differences(ctx context.Context, want *lb.Table, each func(trace.Difference) bool) error {
	more := true
	err := p.PacketPath.Differences(ctx, want, func(d trace.Difference) bool {
		more = each(d)
		return more
	})
	if err != nil || !more {
		return err
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	t := mode.NewReporter(ctx, each)
	return t.Done(p.compare(t, want))
}

// compare reports how programs and tables differ from the desired table.
func (p *Plane) compare(t *mode.Reporter, want *lb.Table) error {
	if p.kernel == nil {
		return t.Report(lb.Key{}, "eBPF programs", "loaded", "")
	}
	for _, h := range hooks(p.cfg.Family) {
		if is := p.kernel.attached(p.kernel.links[h.name]); is != nil {
			err := t.Report(lb.Key{}, "program of "+h.name, "attached to "+p.kernel.cgroup, is.Error())
			if err != nil {
				return err
			}
		}
	}
	now, err := openReading(&p.kernel.obj.LBMaps)
	if err != nil {
		return err
	}
	defer now.close()
	have, err := now.all()
	if err != nil {
		return err
	}
	st := newState(want.Node)
	for f := range want.All() {
		if f.Kind == lb.HealthCheck {
			continue
		}
		k := frontOf(f.Key)
		is, ok := have.fronts[k]
		delete(have.fronts, k)
		for class := range classes {
			wanted, held := wantedOf(st.setOf(f, class)), have.backendsOf(is.Set[class])
			if ok && wanted == held {
				continue
			}
			if err := t.Report(f.Key, fmt.Sprintf("eBPF frontend, for %s", classNames[class]), wanted,
				held); err != nil {
				return err
			}
		}
	}
	for k := range have.fronts {
		if err := t.Report(lb.Key{}, "eBPF frontend "+keyOf(k).String(), "", "there"); err != nil {
			return err
		}
	}
	return nil
}

// classNames are the kinds of clients for people.
var classNames = [...]string{ofPods: "pods", ofHost: "the node"}

// packetPath is what a frontend without a set has.
const packetPath = "the packet path"

func wantedOf(s *lb.BackendSet) string {
	if s == nil {
		return packetPath
	}
	var all []netip.AddrPort
	for b := range s.Backends.All() {
		all = append(all, b.Addr)
	}
	return backendWords(all)
}

func (s *snapshot) backendsOf(set uint32) string {
	if set == 0 {
		return packetPath
	}
	return backendWords(slices.Collect(maps.Values(s.Backends(set))))
}

// backendWords names backends, in the order of their addresses.
func backendWords(all []netip.AddrPort) string {
	slices.SortFunc(all, netip.AddrPort.Compare)
	return fmt.Sprint(slices.Compact(all))
}
