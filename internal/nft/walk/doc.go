// Package walk says what one table of nftables, as the kernel holds it, makes of a packet that opens a connection. It reads the base
// chains, and of what they lead to the rules and the elements that this packet meets, and does with each expression of a rule what the
// kernel does: so the answer follows from what is in force and from nothing else.
//
// Where the kernel draws a number at random, the walk goes all ways at once, each with its share. Elements that packets write, as those of
// session affinity, are kept from the walk at first: what it says is for clients that the kernel does not remember. Then it goes again as
// the kernel would lead this client, which is one way more (Affine).
//
// What it does not know, which no rule of ours has, it takes for a match that fails, and says so.
package walk
