// Package rule has the chains and rules of a table of nftables. A rule is made of statements, each of which is said once, as text for
// nft(8) and as expressions for the kernel (docs/adr/0007). What rules there are, planes say.
package rule
