package hooks

import (
	"fmt"
	"net/netip"
	"strings"

	"kube-proxy/lb"
	"kube-proxy/nodetrace/internal/follow"
	"kube-proxy/trace"
)

// Hook is a place of the kernel's path, by the kernel's number (NF_INET_*).
type Hook uint32

// The hooks.
const (
	Prerouting Hook = iota
	Input
	Forward
	Output
	Postrouting
)

func (h Hook) String() string {
	return [...]string{"prerouting", "input", "forward", "output", "postrouting"}[h]
}

// Packet is what rules see of a packet at a hook.
type Packet struct {
	Proto lb.Proto
	// From and To are as the packet has them there. Port 0 of From is an unknown one. The port of
	// To of ICMP is the type<<8 and the code.
	From, To netip.AddrPort
	// In and Out are the devices; "" for none.
	In, Out string
	// Port is the port of the bridge In that the packet came in through; "" if that is unknown.
	Port string
	// Calls: the bridge In has its frames meet the rules of IP before its own hook input.
	Calls bool
	Mark  uint32
	// TOS is the type of service, with the bits of ECN. TTL is the hop limit; 0 is unknown.
	TOS, TTL byte
	// Before is the priority at which the packet leaves the hook, as IPVS takes it; 0 for none.
	Before int32
	Flow   Flow
}

// State is how conntrack sees a packet.
type State uint8

// The states.
const (
	New State = iota
	Established
	Related
	Untracked
	Invalid
)

// Flow is the connection of a packet.
type Flow struct {
	State State
	// Reply: the packet is of the reply direction.
	Reply bool
	// Later: the packet is not the first one of its direction.
	Later bool
	// Bound: conntrack has bound the translation, though State is New: a local packet comes in
	// through lo, after it was sent.
	Bound bool
	// NewPort: the source port is translated.
	NewPort bool
	// IPVS translates the destination, which ct status does not show.
	IPVS bool
	// Offloaded: a flowtable takes the packet from ingress to egress, past all other hooks.
	Offloaded bool
	// Orig is the tuple of the original direction, Reverse that of replies. They translate a
	// packet that meets no nat chain. Invalid addresses translate nothing. Pass fills them for a
	// new flow.
	Orig, Reverse Tuple
	Mark          uint32
	Label         [16]byte
}

// Tuple is one direction of a connection.
type Tuple struct{ From, To netip.AddrPort }

// tracked reports whether the flow's translation is bound, so that the packet meets no nat chain.
func (f Flow) tracked() bool { return f.State == Established || f.State == Related || f.Bound }

// later reports whether the packet is not the first one of its direction.
func (f Flow) later() bool { return f.Later || f.State == Established && !f.Reply }

// Rule is a rule of any program. Number 0 is the policy of a base chain, -1 the chain itself.
// Table is as nft says it, "table inet firewall", or "table filter of iptables-legacy".
type Rule follow.Rule

// maxText bounds the text of a rule, in bytes.
const maxText = 200

// String names the rule with its text, escaped and bounded.
func (r Rule) String() string {
	text := r.Text
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	where := fmt.Sprintf("%s, chain %s, policy %s", escaped(r.Table), escaped(r.Chain), escaped(text))
	switch {
	case r.Number < 0:
		where = fmt.Sprintf("%s, chain %s %s", escaped(r.Table), escaped(r.Chain), escaped(text))
	case r.Number > 0:
		where = fmt.Sprintf("%s, chain %s, rule %d %q", escaped(r.Table), escaped(r.Chain), r.Number, text)
	}
	if owner := r.Owner(); owner != "" {
		where += " (of " + owner + ")"
	}
	return where
}

// escaped is a bounded name without control characters.
func escaped(s string) string {
	const most = 80
	if len(s) > most {
		s = s[:most] + "…"
	}
	return lb.Printable(s)
}

// Way is one way of a packet through a hook.
type Way struct {
	Packet
	// Share is the part of new connections that go this way.
	Share float64
	// Translated: rules gave the packet another destination at this hook. Masqueraded: another
	// source; From is unchanged if that is an address of this node.
	Translated, Masqueraded bool
	// TranslatedBy is the rule that gave it another destination; nil if conntrack did, or none.
	TranslatedBy *Rule
	// Verdict is "" for a packet that continues, or Drop or Reject. By is the rule that gave it.
	Verdict trace.Verdict
	By      *Rule
	// UntrackedBy is the rule that makes conntrack leave the packet alone; nil for none.
	UntrackedBy *Rule
	// NotEvaluated are rules that may lead the packet to another end. If is the verdict that the
	// packet then has at this hook, for each; "" for one that continues otherwise.
	NotEvaluated []Rule
	If           []trace.Verdict
}

// owners are programs by what the names of their tables or chains begin with.
var owners = []struct{ prefix, owner string }{
	{"cali-", "Calico"}, {"calico", "Calico"},
	{"KUBE-ROUTER", "kube-router"}, {"KUBE-POD-FW", "kube-router"}, {"KUBE-NWPLCY", "kube-router"},
	{"CILIUM", "Cilium"}, {"OLD_CILIUM", "Cilium"}, {"firewalld", "firewalld"}, {"ufw", "ufw"},
	{"DOCKER", "Docker"}, {"docker", "Docker"}, {"FLANNEL", "Flannel"}, {"flannel", "Flannel"},
	{"WEAVE", "Weave"}, {"f2b-", "fail2ban"}, {"CNI-", "CNI plugins"}, {"LIBVIRT", "libvirt"},
	{"ISTIO", "Istio"}, {"ANTREA", "Antrea"}, {"antrea", "Antrea"},
	{"kube-network-policies", "kube-network-policies"}, {"kindnet", "kindnet"},
	{"kube-proxy", "kube-proxy"}, {"KUBE-", "kube-proxy or kubelet"},
}

// Owner returns the program that the chain or the table belongs to by its name; "" if unknown.
func (r Rule) Owner() string {
	for _, name := range []string{r.Chain, r.Table[strings.LastIndexByte(r.Table, ' ')+1:]} {
		for _, o := range owners {
			if strings.HasPrefix(name, o.prefix) {
				return o.owner
			}
		}
	}
	return ""
}
