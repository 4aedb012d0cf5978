//go:build ignore

/* getpeername() has the address that the socket connected to. */

HOOKS(getpeername, answer)
