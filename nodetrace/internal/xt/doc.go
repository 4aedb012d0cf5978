// Package xt follows a packet through the chains of iptables of all programs: those in the
// kernel ([Trace]), or those of a mode ([Chains]).
//
// It has no data about Services. A packet passes raw, mangle, nat and filter in the order of the
// hooks, and obeys the text of each rule that it matches. Rules with unknown parts are reported,
// and count as not matching (docs/adr/0056).
package xt
