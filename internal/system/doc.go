// Package system makes the settings of the host that the proxy is asked for, or that a mode needs: the size and the
// timeouts of connection tracking, sysctls, oom_score_adj.
//
//	Start      before the planes are made, for they read some of it
//	InitOnly   --init-only: what needs full privileges, for a later process that has CAP_NET_ADMIN alone
//	Reload     what changed between two configurations
//
// What cannot be set is told apart. If the present value does what is asked for, it is kept. If the host is as good
// without, there is a warning. All else is an error that names the sysctl, both values, and the flag and the field
// that ask for it; the process should end, for it would serve less than it promises. Everything is tried before an error is
// returned, so that one start tells all.
//
// Who turns on forwarding: the mode ipvs does, for IPv4 (DP-30). The other modes rely on whoever set up the node,
// as upstream's do: to forward makes a host a router, and with IPv6 it no longer listens to router advertisements. If
// it is off there is a warning.
package system
