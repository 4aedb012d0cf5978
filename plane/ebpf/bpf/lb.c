//go:build ignore

/* The object of all hooks, because they share maps. */
#include "maps.h"
#include "balance.h"
#include "connect.c"
#include "sendmsg.c"
#include "recvmsg.c"
#include "getpeername.c"
#include "bind.c"
#include "release.c"
#include "ask.c"

char licence[] SEC("license") = "Apache-2.0"; /* no helper asks for the GPL */
