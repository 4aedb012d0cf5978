// Package xtables runs the iptables programs of one IP family, of the nft or the legacy back end.
// It reads and writes their language: the input of iptables-restore, and the output of
// iptables-save. It defines no rules.
//
// A user renders chains and gives a [Batch] of them to a [Writer], or lets a [Manager] maintain
// them. A Manager remembers a digest of each chain, writes those that differ, finds the rules of a
// frontend by a tree (docs/adr/0011), and repairs changes of other programs. Mode iptables has too
// many chains for a Manager. It shares [Change], [Dispatcher] and the comparison of
// [Tool.Differences].
//
// names.go has the names that other software relies on, and those of older versions; [Remove]
// removes all of them. The kernel's state is read from the programs and, chain by chain, from
// nf_tables (docs/adr/0056).
package xtables
