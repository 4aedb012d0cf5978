package relay

import (
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Open connections take two descriptors each, no goroutine, no pipe, and a few hundred bytes.
func TestTCPManyOpen(t *testing.T) {
	const n, most = 2500, 600 // bytes each
	r := newRelay(t, Config{Descriptors: NewBudget(1 << 20)})
	client := startPeer(t)
	l := listen(t, r, leadsTo(startPeer(t).backends["connect"]))
	client.do(t, "hold", l.Addr(), 100) // one-time allocations are done
	heapBefore, stacksBefore := memoryInUse()
	files, goroutines := openFDs(t), runtime.NumGoroutine()
	client.do(t, "hold", l.Addr(), n-100)
	heap, stacks := memoryInUse()
	more := openFDs(t)
	if open := r.Stats().TCP.Open; open != int64(n) {
		t.Fatalf("%d are open", open)
	}

	for i, loop := range r.conns.(*conns).loops {
		if has := loop.open.Load(); has < int64(n/len(r.conns.(*conns).loops)/2) {
			t.Errorf("loop %d has %d of them", i, has)
		}
	}
	each := float64(heap+stacks-heapBefore-stacksBefore) / float64(n-100)
	t.Logf("%d connections open: %.0f bytes of memory each, %.3f descriptors, %d pipes and %d goroutines more", n, each,
		float64(more["socket"]-files["socket"])/float64(n-100), (more["pipe"]-files["pipe"])/2,
		runtime.NumGoroutine()-goroutines)
	if each > most {
		t.Errorf("a connection takes %.0f bytes, want no more than %d", each, most)
	}
	if got := more["socket"] - files["socket"]; got != perConn*(n-100) {
		t.Errorf("%d connections take %d sockets more", n-100, got)
	}
	if got := more["pipe"] - files["pipe"]; got > 2*sparePipes*maxLoops {
		t.Errorf("%d ends of pipes are open", got)
	}
	if got := runtime.NumGoroutine() - goroutines; got > 1 {
		t.Errorf("%d goroutines more", got)
	}
}

// For clients and backends that never read, the kernel holds little, although it would give one
// connection much: its memory for sockets is shared by the whole host.
func TestTCPStalledPeers(t *testing.T) {
	const connections, most = 20, 3 << 20 // bytes each
	for _, c := range []struct{ client, backend string }{{"stall", "flood"}, {"pour", "mute"}} {
		t.Run(c.backend, func(t *testing.T) {
			r := newRelay(t, Config{})
			client := startPeer(t)
			l := listen(t, r, leadsTo(startPeer(t).backends[c.backend]))
			client.do(t, c.client, l.Addr(), connections)
			moved, still := uint64(0), 0
			// nothing moves any more
			for deadline := time.Now().Add(time.Minute); still < 10; time.Sleep(50 * time.Millisecond) {
				s := r.Stats().TCP
				still++
				if moved != s.ToClients+s.ToBackends {
					moved, still = s.ToClients+s.ToBackends, 0
				}
				if time.Now().After(deadline) {
					t.Fatalf("after %d bytes it still goes on", moved)
				}
			}
			held := heldByKernel(t)
			t.Logf("%d connections, %d bytes accepted: the kernel holds %d kB for each", connections, moved,
				held/connections>>10)
			if moved < connections<<16 || held < connections<<16 {
				t.Error("nothing is under way: the peers did not do what they should")
			}
			if held > connections*most {
				t.Errorf("the kernel holds %d bytes for each connection, want no more than %d", held/connections, most)
			}
		})
	}
}

// heldByKernel returns the bytes of memory in the buffers of this process's sockets.
func heldByKernel(t *testing.T) (sum int) {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	const meminfo, received, queued = 55, 0, 5 // SO_MEMINFO, and SK_MEMINFO_RMEM_ALLOC and SK_MEMINFO_WMEM_QUEUED in it
	for _, f := range files {
		fd, _ := strconv.Atoi(f.Name())
		var vars [9]uint32
		size := uint32(unsafe.Sizeof(vars))
		if _, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, meminfo,
			uintptr(unsafe.Pointer(&vars)), uintptr(unsafe.Pointer(&size)), 0); errno == 0 {
			sum += int(vars[received] + vars[queued])
		}
	}
	return sum
}

// leadsTo is a Balancer without state.
type leadsTo netip.AddrPort

func (b leadsTo) Pick(Client, []netip.AddrPort) netip.AddrPort { return netip.AddrPort(b) }
func (leadsTo) Dialled(Client, netip.AddrPort, error)          {}
func (leadsTo) Serves(netip.AddrPort) bool                     { return true }

// memoryInUse returns the sizes of the program's heap and stacks in bytes.
func memoryInUse() (heap, stacks int) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc), int(m.StackInuse)
}
