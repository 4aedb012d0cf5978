// Package flows tells operators of connections, as the conntrack table of this network namespace has them: those of a client to an
// address ([Find]), and how many are opened a second to each row ([Top]).
//
// All modes have them there, by the address and port that the client asked for, whoever translates it: rules, IPVS, or a proxy to which the
// packets are redirected. A packet that is rejected or dropped makes none; nor does one before the first rule of this network
// namespace that asks conntrack, until which the kernel keeps no table.
//
// Nothing is held while nobody asks. Whoever asks reads by sockets of his own, and is bounded in what he gets; [Top] has one socket
// for all who ask.
package flows
