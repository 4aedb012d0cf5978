// Package xtables runs the programs of iptables, of the nft or of the legacy back end, for one IP family, and knows their language: the rules
// that iptables-restore takes and iptables-save prints. It has no rules of its own.
//
// A user renders chains, and hands a Batch of them to a Tool, or has a Keeper keep them: that remembers a digest of each chain, writes those
// that differ, finds the rules of a row by a tree (docs/adr/0011), and mends what others change. Where very many chains are to be written the
// user does that itself, as mode iptables does.
//
// names.go has the names that other software knows, and those of older versions; Remove takes all of them away. What the kernel holds is read
// from the programs and, chain by chain, from nf_tables (docs/adr/0061).
package xtables
