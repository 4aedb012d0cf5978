//go:build linux

package ebpf

import (
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"

	cebpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"kube-proxy/config/option"
	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/ebpf/bpf"
	"kube-proxy/test/kerneltest"
)

// removeOn removes the programs of a family as a process of another mode does, which sees another
// BPF file system than the process that pinned them.
func (b *bench) removeOn(host string) (r mode.Report) {
	b.t.Helper()
	o := newOptions()
	o.EBPF.BPFFS = b.t.TempDir()
	b.On(host, func() {
		var err error
		r, err = remove(mode.Removal{Families: []lb.Family{b.f}, Blocks: option.Blocks{o}, Beside: true})
		b.must(err)
	})
	return r
}

// installedOf returns how many programs the proxy of a host has attached, as the kernel says.
func (b *bench) installedOf(host string) (n int) {
	b.t.Helper()
	b.On(host, func() {
		all, err := attachments()
		b.must(err)
		here, err := installedHere(all)
		b.must(err)
		n = count(here)
	})
	return n
}

// TestRemovalWithoutPins: who leaves mode ebpf detaches its programs, also those that another mount
// of the BPF file system has pinned. Those of a proxy in another network namespace stay (EB-29).
func TestRemovalWithoutPins(t *testing.T) {
	eachFamily(t, func(b *bench) {
		other := newBench(b.t, b.f, nil)
		other.On(netlab.Node1, func() { other.plane = other.newPlane() })
		defer other.plane.Close()
		other.table = other.parse(shop)
		other.On(netlab.Node1, func() { other.reset(other.table) })
		b.must(b.plane.Close())
		if !b.direct("pod3") {
			b.t.Fatal("the programs do not serve at first")
		}
		want := len(hooks(b.f))
		what := "eBPF programs of " + b.f.String()
		if r := b.removeOn(netlab.Node1); len(r.Removed) != 1 || !strings.Contains(r.Removed[0], what) {
			b.t.Errorf("removed: %q", r.Removed)
		}
		if b.direct("pod3") {
			b.t.Error("programs connect sockets after the removal")
		}
		if n, others := b.installedOf(netlab.Node1), other.installedOf(netlab.Node1); n != 0 || others != want {
			b.t.Errorf("attached are %d programs, and %d of another network namespace, want 0 and %d", n, others, want)
		}
		if r := b.removeOn(netlab.Node1); len(r.Removed)+len(r.Left) > 0 {
			b.t.Errorf("a second time: %+v", r)
		}
		b.On(netlab.Node1, func() { b.plane = b.newPlane(); b.reset(b.table) })
		if !b.direct("pod3") {
			b.t.Error("the programs do not serve after a start")
		}
	})
}

// TestTwoSets: a process that does not see the pins of the last one takes over from its programs,
// and says so once (EB-29).
func TestTwoSets(t *testing.T) {
	eachFamily(t, func(b *bench) {
		b.must(b.plane.Close())
		b.planes = &planes{bpffs: bpffs(b.t)}
		b.On(netlab.Node1, func() { b.plane = b.newPlane(); b.reset(b.table) })
		if n, want := b.installedOf(netlab.Node1), len(hooks(b.f)); n != want {
			b.t.Errorf("%d programs are attached, want %d", n, want)
		}
		said := 0
		for _, n := range b.plane.Notices() {
			said += strings.Count(n.Text, "Detached eBPF programs of an earlier process")
		}
		if said != 1 {
			b.t.Errorf("noticed %d times, want once", said)
		}
		b.noRules()
		b.reaches("pod3", netlab.TCP, "VIP:80", "pod1")
		if n, err := b.plane.audit(); n != 0 || err != nil || len(b.plane.Notices()) > 0 {
			b.t.Errorf("an audit repaired %d, error %v", n, err)
		}
	})
}

// TestRemovalOfOldBuild: the programs of a build without the mark, and those attached without a
// link, are removed too, and foreign ones of the same names stay (EB-29).
func TestRemovalOfOldBuild(t *testing.T) {
	for name, direct := range map[string]bool{"linked": false, "attached without links": true} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, lb.IPv4, nil)
			cgroup := b.Cgroup(netlab.Node1)
			defer b.stranger("connect6", cgroup)()
			spec, err := cebpf.LoadCollectionSpec("testdata/lb-a3682b75.o")
			b.must(err)
			var obj bpf.LBPrograms
			var config struct {
				Config *cebpf.Map `ebpf:"config"`
			}
			all, err := cebpf.NewCollection(spec)
			b.must(err)
			defer all.Close()
			b.must(all.Assign(&obj))
			b.must(all.Assign(&config))
			defer obj.Close()
			defer config.Config.Close()
			settings := make([]byte, config.Config.ValueSize())
			b.On(netlab.Node1, func() {
				cookie, err := netnsCookie()
				b.must(err)
				binary.NativeEndian.PutUint64(settings, cookie)
			})
			b.must(config.Config.Put(uint32(0), settings))
			for _, h := range hooks(lb.IPv4) {
				b.attach(h, h.program(&obj), cgroup, direct)
			}
			want := len(hooks(lb.IPv4))
			if n := b.installedOf(netlab.Node1); n != want {
				t.Fatalf("%d programs recognized, want %d", n, want)
			}
			if n := b.installedOf("pod1"); n != 0 {
				t.Fatalf("another network namespace has %d programs", n)
			}
			b.removeOn(netlab.Node1)
			if n := b.installedOf(netlab.Node1); n != 0 {
				t.Errorf("%d programs are left", n)
			}
			at, err := programsAt(cgroup, hook{"connect6", cebpf.AttachCGroupInet6Connect, nil}, false)
			if err != nil || len(at.Programs) != 1 {
				t.Errorf("the foreign program: %v, error %v", at, err)
			}
		})
	}
}

// attach attaches a program, and detaches it with the test if it is still attached.
func (b *bench) attach(h hook, p *cebpf.Program, cgroup string, direct bool) {
	b.t.Helper()
	if !direct {
		l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: h.attach, Program: p})
		b.must(err)
		b.t.Cleanup(func() { l.Close() })
		return
	}
	dir, err := os.Open(cgroup)
	b.must(err)
	b.t.Cleanup(func() { dir.Close() })
	at := link.RawAttachProgramOptions{Target: int(dir.Fd()), Program: p, Attach: h.attach,
		Flags: unix.BPF_F_ALLOW_MULTI}
	b.must(link.RawAttachProgram(at))
	b.t.Cleanup(func() {
		at.Flags = 0
		if err := link.RawDetachProgram(link.RawDetachProgramOptions(at)); err != nil && !errors.Is(err, unix.ENOENT) {
			b.t.Error(err)
		}
	})
}

// TestFamilyOfPrograms: while the programs of IPv4 are replaced, those for IPv6 sockets alone may
// be seen. They are not those of IPv6, which would detach them as strays (EB-29).
func TestFamilyOfPrograms(t *testing.T) {
	kerneltest.Later(t)
	b := shopBench(t, lb.IPv4, nil)
	for _, h := range hooks(lb.IPv4) {
		if h.name != "post_bind6" {
			b.must(b.plane.detach(h.name))
		}
	}
	b.On(netlab.Node1, func() {
		for f, want := range map[lb.Family]int{lb.IPv4: 1, lb.IPv6: 0} {
			if found, err := installedOf([]lb.Family{f}); err != nil || count(found) != want {
				t.Errorf("%s: %d programs, want %d; %v", f, count(found), want, err)
			}
		}
	})
}
