// Package kernel queries the abilities of the running kernel, and netfilter's state, sets sysctls,
// and waits for packets in progress.
//
// Probes and sysctls work in the network namespace of the calling thread: a caller that needs
// another one switches a locked thread there first.
package kernel
