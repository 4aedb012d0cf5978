// Package kernel asks the running kernel what it can do, and its netfilter what there is, and sets sysctls and the like.
//
// Probes and sysctls work in the network namespace of the calling thread: a caller that is to look at
// another one switches a locked thread there first.
package kernel
