// Package kernel asks the running kernel what it can do, and its netfilter what there is, sets sysctls and the like, and waits for
// packets that are under way.
//
// Probes and sysctls work in the network namespace of the calling thread: a caller that is to look at
// another one switches a locked thread there first.
package kernel
