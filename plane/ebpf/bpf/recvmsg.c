//go:build ignore

/* recvfrom() of a UDP socket: a reply comes from the address that the socket sent to. */

HOOKS(recvmsg, answer)
