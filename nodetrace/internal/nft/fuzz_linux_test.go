package nft

import (
	"testing"

	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
)

// FuzzRule: the readers of rules, hooks, elements and verdicts take any bytes of a message: other
// programs write the rules that a trace follows. Reading is a function of the bytes.
func FuzzRule(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{2, 0, 0, 0, 8, 0, 1, 0, 'f', 0, 0, 0, 12, 0, 4, 0x80, 8, 0, 1, 0x80, 0xff, 0xff, 0, 0})
	f.Add([]byte{2, 0, 0, 0, 28, 0, 4, 0x80, 24, 0, 1, 0x80, 12, 0, 1, 0, 'c', 'o', 'u', 'n', 't', 'e', 'r', 0,
		8, 0, 2, 0x80, 4, 0, 1, 0})
	f.Fuzz(func(t *testing.T, body []byte) {
		r := RuleOf(body)
		again := RuleOf(body)
		if !rule.Does(r.all, again.all) || r.Comment != again.Comment || r.Handle != again.Handle {
			t.Errorf("%+v, and then %+v", r, again)
		}
		wire.HookOf(body)
		wire.VerdictOf(body)
		wire.ElementsIn(body, func(el []byte) {
			if key := wire.ElementKey(el); len(key) > len(el) {
				t.Errorf("a key of %d bytes in an element of %d", len(key), len(el))
			}
		})
	})
}
