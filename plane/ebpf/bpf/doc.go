// Package bpf has the programs of the mode ebpf, their maps, and the objects that clang makes of
// them.
//
// There is one C file for each hook. balance.h is what the hooks share: from a destination to a
// backend. namespace.h says whether a client's packets would meet the node. maps.h has the maps
// and their structs, which the Go types below mirror. `make objects` builds the objects again, and
// `make test-objects` compares them.
package bpf

//go:generate go tool bpf2go -tags linux -target bpfel -type settings -type front -type frontend -type set -type place -type slot -type backend -type choice -type choices -type peer -type refusal -type usage -type question LB lb.c -- -O2 -Wall -Werror -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
//go:generate go tool bpf2go -tags linux -target bpfel -type stale Stale stale.c -- -O2 -Wall -Werror -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
//go:generate go tool bpf2go -tags linux -target bpfel -type silent Silent silent.c -- -O2 -Wall -Werror -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
