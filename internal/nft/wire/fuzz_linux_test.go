package wire

import (
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// The comment of a rule is found among other user data. Data of another format, which any program
// may write, has none.
func TestRuleComment(t *testing.T) {
	for data, want := range map[string]string{"\x00\x03hi\x00": "hi", "\x00\x02hi": "hi",
		"\x01\x01x\x00\x03hi\x00": "hi", "": "", "\x00": "", "\x00\x04hi\x00": "", "\x01\xffx\x00\x03hi\x00": "",
		"\x01\x00\x02\x00": "", "\xff\xff\xff\xff": ""} {
		var e Encoder
		e.Bytes(unix.NFTA_RULE_USERDATA, []byte(data))
		if got := RuleComment(e.B); got != want {
			t.Errorf("%q: %q, want %q", data, got, want)
		}
	}
}

// FuzzMessages: the readers of messages take any bytes. The monitor receives those about tables of
// all programs of the node.
func FuzzMessages(f *testing.F) {
	name := Request(unix.NFT_MSG_NEWRULE, 0, unix.NFPROTO_IPV4, unix.NFTA_RULE_TABLE, "kube-proxy",
		unix.NFTA_RULE_CHAIN, "services")
	f.Add(uint16(unix.NFT_MSG_NEWRULE), name[unix.SizeofNlMsghdr:])
	f.Add(uint16(unix.NFT_MSG_NEWGEN), []byte{2, 0, 0, 0, 8, 0, 1, 0, 0, 0, 0, 7, 7, 0, 3, 0, 'n', 'f', 't', 0})
	f.Add(uint16(unix.NFT_MSG_NEWSETELEM), []byte{2, 0, 0, 0, 16, 0, 3, 0x80, 12, 0, 1, 0x80, 8, 0, 1, 0x80, 4, 0, 1,
		0})
	f.Add(uint16(unix.NFT_MSG_DELTABLE), []byte{2})
	f.Add(uint16(unix.NFT_MSG_NEWRULE), []byte{2, 0, 0, 0, 8, 0, unix.NFTA_RULE_USERDATA, 0, 0, 40, 'c', 'u'})
	set := Set{Name: "services", Key: Fields{IPv4Field, ProtoField, PortField}, Data: Fields{SlotField}}
	f.Fuzz(func(t *testing.T, typ uint16, message []byte) {
		notices, ends := 0, 0
		m := &Monitor{family: unix.NFPROTO_IPV4, ours: func(_, _ string) bool { return true },
			noticed: func(uint16, []byte) { notices++ }, ended: func() { ends++ }}
		for range 2 * maxObjects {
			m.notice(netlink.Message{Type: MsgType(typ & 0xff), Body: message})
		}
		m.notice(netlink.Message{Type: MsgType(unix.NFT_MSG_NEWGEN), Body: make([]byte, Header)})
		if (notices > 0) != (ends > 0) || len(m.story.who) > maxWriters+1 || len(m.story.what) > maxObjects+1 {
			t.Errorf("%d notices, %d ends, and %+v", notices, ends, m.story)
		}
		if text := m.ChangedBy(); (text != "") != (ends > 0) {
			t.Errorf("%d ends, and %q", ends, text)
		}
		if len(message) < Header {
			return
		}
		body := message[Header:]
		if len(RuleComment(body)) > len(body) {
			t.Error("a comment is longer than its message")
		}
		_ = VerdictOf(body).String()
		hook, _ := HookOf(body)
		_ = hook.State()
		ElementsIn(body, func(el []byte) {
			if rec := set.Record(nil, el); len(rec) > len(el) {
				t.Errorf("a record of %d bytes in an element of %d", len(rec), len(el))
			}
		})
		set.Matches(body)
	})
}
