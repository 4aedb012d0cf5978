// Package rule builds the chains and rules of nftables tables. A rule consists of statements, each
// defined once, as text for nft(8) and as expressions for the kernel (docs/adr/0007). The planes
// define the rules.
package rule
