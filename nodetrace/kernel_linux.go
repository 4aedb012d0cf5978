package nodetrace

import (
	"context"
	"fmt"

	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/internal/xtables"
	"kube-proxy/nodetrace/internal/follow"
	"kube-proxy/nodetrace/internal/nft"
	"kube-proxy/nodetrace/internal/xt"
	"kube-proxy/trace"
)

// Kernel follows a packet through the rules of a mode in the kernel. It is a [mode.Walk].
func Kernel(ctx context.Context, rules any, p trace.Packet) (trace.Kernel, error) {
	switch r := rules.(type) {
	case rule.Table:
		sock, err := wire.Open()
		if err != nil {
			return trace.Kernel{}, err
		}
		defer sock.Close()
		return Table(ctx, sock, r, p)
	case *xtables.Tool:
		return xt.Trace(ctx, r, p)
	case *xtables.Visit:
		verdict, err := xt.NewChains(r.Rules, r.Sets, r.Report).Pass(ctx, r.Table, r.Chain, r.Packet)
		return trace.Kernel{Verdict: verdict}, err
	}
	return trace.Kernel{}, fmt.Errorf("rules of type %T are not followed", rules)
}

// Table follows a packet through one table of nftables.
func Table(ctx context.Context, sock *wire.Socket, t rule.Table, p trace.Packet) (trace.Kernel, error) {
	all, lines, err := nft.Go(ctx, sock, t, p)
	if err != nil {
		return trace.Kernel{}, err
	}
	return follow.Answer(p, all, lines), nil
}
