// Package system applies the host settings that are configured or that a mode needs: the size and
// the timeouts of connection tracking, sysctls, oom_score_adj.
//
//	Start      before the planes are made, since they read some of the settings
//	InitOnly   --init-only: settings that need full privileges, for a later process with CAP_NET_ADMIN only
//	Reload     the changes between two configurations
//
// A setting that cannot be changed has one of three outcomes. If the present value suffices, it is
// kept. If the proxy works without it, there is a warning. Otherwise there is an error that names
// the sysctl, both values, the flag and the field, and the process should end. All settings are
// tried before an error is returned, so that one start reports all failures.
//
// Forwarding: the mode ipvs turns it on for IPv4 (DP-30). The other modes rely on the setup of the
// node, as upstream's do: forwarding makes a host a router, and with IPv6 it then ignores router
// advertisements. If it is off there is a warning.
package system
