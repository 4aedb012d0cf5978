// Package xtwalk follows a packet through the chains of iptables, whoever made them: as the kernel holds them ([Looker]), or as a mode keeps
// them ([Chains]).
//
// It knows nothing of Services: a packet passes raw, mangle, nat and filter in the order of the hooks, and does what the text of each rule says
// that it meets. What a rule asks that is not understood is told, and nobody is said to meet it (docs/adr/0056).
package xtwalk
