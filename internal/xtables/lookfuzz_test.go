//go:build linux

package xtables

import (
	"context"
	"net/netip"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/trace"
)

// garbled is a holding of one chain, which is what somebody made up.
type garbled struct {
	nft  Rule
	blob *blob
}

func (g garbled) Names(Table) (map[string]bool, error) { return nil, nil }
func (g garbled) generation() (uint32, error)          { return 0, nil }
func (g garbled) Close()                               {}
func (g garbled) Chain(id ChainID) (*ChainState, error) {
	if id.Table == Filter {
		return &ChainState{Rules: []Rule{g.nft, g.nft}, Hooked: true}, nil
	}
	return g.blob.chain(id.Name)
}

// FuzzRulesOfTheKernel reads as rules what no kernel would say, and follows a packet through them: an error, or an answer.
func FuzzRulesOfTheKernel(f *testing.F) {
	around, err := LookAround()
	if err != nil {
		f.Fatal(err)
	}
	defer around.Close()
	entry := make([]byte, 112+40)
	native.PutUint16(entry[88:], 112)
	native.PutUint16(entry[90:], 152)
	f.Add(entry, false)
	native.PutUint32(entry[112+32:], 152)
	f.Add(append(entry, entry...), false)
	f.Add([]byte("\x10\x00\x04\x80\x0c\x00\x01\x80\x08\x00\x01\x00cmp\x00"), true)
	f.Fuzz(func(t *testing.T, data []byte, six bool) {
		family, to := lb.IPv4, netip.MustParseAddrPort("192.0.2.1:80")
		if six {
			family, to = lb.IPv6, netip.MustParseAddrPort("[2001:db8::1]:80")
		}
		read, err := readNFT(family, data)
		if err != nil {
			read = Rule{Text: "-j ACCEPT", do: verdict{do: accept}}
		}
		b := &blob{Entries: data, family: family, form: entryForms[family], valid: 31, chains: map[string]uint32{}}
		if len(data) > 4 {
			b.hooks[3] = native.Uint32(data) % uint32(len(data))
		}
		w := &walk{ctx: context.Background(), packet: trace.Packet{From: to, To: to, Host: true, Here: true, Proto: lb.TCP}, holds: garbled{read, b},
			place: around, read: map[ChainID]*ChainState{}, said: map[saying]bool{}}
		w.all()
		if k := w.answer(); w.err == nil && k.Verdict == "" {
			t.Errorf("no verdict: %+v", w.ends)
		}
		b.index()
	})
}
