// Package nft evaluates one table of nftables, as the kernel holds it, for a packet that opens a
// connection. It reads the base chains, and those rules and elements that the packet meets on its
// way. It evaluates each expression of a rule as the kernel does. So the answer depends only on the
// rules in force.
//
// When the kernel draws a random number, the walk follows all ways at once, each with its share. At
// first it ignores elements that packets write, such as those of session affinity: the result is
// for clients without an entry. A second walk includes them, and gives the way of this client,
// which is one more way (Affine).
//
// The walk treats an unknown expression as a match that fails, and reports it; no rule of ours has
// one.
package nft
