//go:build linux

package ebpf

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/kerneltest"
)

// TestCookieByProgram: where the kernel lacks SO_NETNS_COOKIE (before Linux 5.14) a program reads
// the cookie of a network namespace, in each its own (EB-22).
func TestCookieByProgram(t *testing.T) {
	kerneltest.Later(t)
	lab := netlab.ForTest(t, netlab.Options{NoNode2: true, NoClient: true})
	seen := map[uint64]string{}
	for _, host := range []string{netlab.Node1, "pod1", "sink"} {
		lab.On(host, func() {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			got, err := cookieByProgram(fd)
			if err != nil {
				t.Fatal(err)
			}
			want, err := netnsCookie()
			if err != nil || got != want || seen[got] != "" {
				t.Errorf("%s: cookie %d, by the kernel's own %d, error %v; it is that of %q", host, got, want, err,
					seen[got])
			}
			seen[got] = host
		})
	}
}

// TestOff: what this kernel lacks is off and reported once, and nothing else is; the programs serve
// in any case (EB-22).
func TestOff(t *testing.T) {
	eachFamily(t, func(b *bench) {
		said := map[string]int{}
		note := func() {
			for _, n := range b.plane.Notices() {
				said[fmt.Sprint(n.Text, n.Args)]++
			}
		}
		note()
		b.On(netlab.Node1, func() { b.reset(b.table) })
		note()
		for words, lacks := range map[string]error{
			"bind() to a NodePort with EPERM": setsErrors(), "do not end": b.plane.unreaped,
		} {
			times := 0
			for text, n := range said {
				if strings.Contains(text, words) {
					times += n
				}
			}
			if want := map[bool]int{true: 1}[lacks != nil]; times != want {
				b.t.Errorf("%d notices with %q, want %d, for the kernel lacks %v: %v", times, words, want, lacks, said)
			}
		}
		b.noRules()
		b.reaches("pod3", netlab.TCP, "VIP:80", "pod1")
	})
}

// TestOwnCookies: a thread in another network namespace knows that of the process too (EB-25).
func TestOwnCookies(t *testing.T) {
	kerneltest.Later(t)
	home, err := netnsCookie()
	if err != nil {
		t.Fatal(err)
	}
	err = netlab.Isolated(0, func() error {
		there, err := netnsCookie()
		if err != nil {
			return err
		}
		all, err := ownCookies()
		if there == home || !slices.Equal(all, []uint64{there, home}) {
			t.Errorf("cookies %v, want %d and %d", all, there, home)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
