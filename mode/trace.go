package mode

import "kube-proxy/trace"

// Trace returns the data of the mode with these settings for [trace.Ask].
func (m Mode) Trace(s Settings) trace.Mode {
	how := trace.Mode{
		Name:           m.Name,
		PassesUnknown:  m.PassesUnknown,
		Holds:          m.AddressDevice != "",
		Terminates:     m.Terminates,
		Loopback:       m.LocalhostNodePorts && s.LocalhostNodePorts,
		LocalhostProxy: m.LocalhostGate != "" && s.LocalhostProxy,
		HairpinsByNode: m.HairpinsByNode,

		LocalhostSockets: m.LocalhostSockets,
	}
	if how.Terminates || how.LocalhostProxy {
		how.Mark = 1 << s.MasqueradeBit
	}
	if m.Served != nil {
		how.Served = m.Served(s)
	}
	return how
}
