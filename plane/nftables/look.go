//go:build linux

package nftables

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"kube-proxy/internal/nft/walk"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/trace"
)

// ruleset is the plane's for no node and no seed.
func (l *layout) ruleset() *ruleset { return &ruleset{layout: *l} }

// Follow is part of mode.Looker. It reads the rules and elements that the packet meets, on a socket of its own, and carries them out: the
// answer holds of what is in the kernel, whatever this process believes to be there.
func (p *Plane) Follow(ctx context.Context, packet trace.Packet) (trace.Kernel, error) {
	k, err := p.look.follow(ctx, packet)
	if err != nil {
		return trace.Kernel{}, fmt.Errorf("nftables %s: follow a packet to %s: %w", p.look.IP.Family, packet.To, err)
	}
	return p.localhost.Follow(packet, k), nil
}

// table is the table as packets walk through it.
func (l *layout) table() walk.Table {
	return walk.Table{Family: l.Proto, Name: TableName, Chains: l.ruleset().skeleton(), Sets: l.sets[:]}
}

func (l *layout) follow(ctx context.Context, packet trace.Packet) (trace.Kernel, error) {
	sock, err := wire.Open()
	if err != nil {
		return trace.Kernel{}, err
	}
	defer sock.Close()
	a, err := walk.Go(ctx, sock, l.table(), packet)
	if err != nil {
		return trace.Kernel{}, err
	}
	return kernelAnswer(packet, a), nil
}

// kernelAnswer sums up the ways of a packet. Where some have a backend and others none, backends answer, with shares that are less than one
// together, and a line says of the others.
func kernelAnswer(packet trace.Packet, a walk.Answer) trace.Kernel {
	k := trace.Kernel{Way: a.Text}
	shares, others := map[netip.AddrPort]float64{}, map[trace.Verdict]float64{}
	// A backend that is its own client is masqueraded whoever asks (SV-60); it tells nothing of others.
	masquerade, hairpin := false, false
	for _, w := range a.Ways {
		if !w.Translated || w.Verdict != trace.Pass {
			others[w.Verdict] += w.Share
			continue
		}
		shares[w.To] += w.Share
		if w.To.Addr() == packet.From.Addr() {
			hairpin = hairpin || w.Masquerade
		} else {
			masquerade = masquerade || w.Masquerade
		}
	}
	for to, share := range shares {
		k.Backends = append(k.Backends, trace.Backend{Address: to, Share: share})
	}
	slices.SortFunc(k.Backends, func(a, b trace.Backend) int { return a.Address.Compare(b.Address) })
	verdicts := []trace.Verdict{trace.Pass, trace.Drop, trace.Reject}
	slices.SortStableFunc(verdicts, func(a, b trace.Verdict) int { return cmp.Compare(others[b], others[a]) })
	k.Verdict = verdicts[0]
	if len(k.Backends) > 0 {
		k.Verdict, k.Masquerade = trace.Balance, masquerade || hairpin && len(k.Backends) == 1
		for _, v := range verdicts {
			if others[v] > 0 {
				k.Way = append(k.Way, fmt.Sprintf("%.2g %% of new connections meet no backend: %s", 100*others[v], v))
			}
		}
		if hairpin && len(k.Backends) > 1 && !masquerade {
			k.Way = append(k.Way, "a client that is the backend itself is masqueraded")
		}
	}
	if len(a.Remembered) == 1 && a.Remembered[0].Translated {
		k.Affine = a.Remembered[0].To
	}
	return k
}
