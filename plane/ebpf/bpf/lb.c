//go:build ignore

/* The object of all hooks, because they share maps. */
#include "maps.h"
#include "kernel.h"
#include "namespace.h"
#include "balance.h"
#include "connect.c"
#include "sendmsg.c"
#include "recvmsg.c"
#include "getpeername.c"
#include "bind.c"
#include "release.c"
#include "ask.c"

/* Programs that read the kernel's structs need the GPL; these files may be used under it too. */
char licence[] SEC("license") = "Dual BSD/GPL";
