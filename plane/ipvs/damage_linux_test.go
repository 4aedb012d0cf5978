package ipvs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/golden"
	"kube-proxy/test/ipvsfake"
	"kube-proxy/test/planetest"
)

// kernelBench is a plane on the kernel's ipsets and addresses.
type kernelBench struct {
	*deviceBench
	planetest.World
	p     *Plane
	sets  *ipset.Conn
	table *lb.Table
}

// newKernelBench returns a plane that holds inspectTable. rest returns IPVS, Chains and View, for
// the network namespace of the calling thread.
func newKernelBench(t *testing.T, f lb.Family, rest func() Config) *kernelBench {
	k := &kernelBench{deviceBench: newDeviceBench(t, f), World: planetest.World{Family: f}}
	k.foreign(unix.RTM_NEWADDR, k.other.Attrs().Index, k.Addr(192, 1), k.Addr(192, 1).BitLen())
	var err error
	k.sets, err = ipset.Open()
	must(t, err)
	t.Cleanup(func() { k.sets.Close() })
	cfg := rest()
	cfg.Family, cfg.Masquerade, cfg.Sets, cfg.Device = f, 1<<14, k.sets, k.device
	k.p = New(cfg)
	t.Cleanup(func() { k.p.Close() })
	k.table = inspectTable(k.World)
	must(t, only(planetest.ResetAll(t.Context(), k.p, k.table)))
	return k
}

// newDamaged returns a plane with IPVS and rules in memory.
func newDamaged(t *testing.T, f lb.Family) *kernelBench {
	return newKernelBench(t, f, func() Config {
		return Config{IPVS: connect(t, ipvsfake.New(ipvsfake.Config{})), Chains: &rules{}}
	})
}

// run runs a command, as another program on the node would.
func (d *kernelBench) run(stdin string, args ...string) {
	d.t.Helper()
	mustRun(d.t, stdin, args[0], args[1:]...)
}

// state returns the content of the kernel's ipsets and kube-ipvs0.
func (d *kernelBench) state() string {
	d.t.Helper()
	var all []string
	for s := range setCount {
		name := s.name(d.Family)
		h, err := d.sets.Members(d.t.Context(), name, func(m ipset.Member) {
			// Its number may change.
			if _, _, numbered := d.p.cfg.layout().mark.number(m.Mark); numbered {
				m.Mark = 1
			}
			all = append(all, name+" "+m.String())
		})
		if !errors.Is(err, ipset.ErrNoSet) {
			must(d.t, err)
			all = append(all, h.Set.String())
		}
	}
	addrs, err := netlink.AddrList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: d.indexOf(Device)}},
		netlink.FAMILY_ALL)
	must(d.t, err)
	for _, a := range addrs {
		if a.IP.IsGlobalUnicast() {
			all = append(all, "address "+a.IP.String())
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// repairs makes the plane repair the changes that it noticed, or with full those that it finds,
// until right returns no difference.
func (d *kernelBench) repairs(full bool, right func() string) {
	d.t.Helper()
	wrong := ""
	for end := time.After(10 * time.Second); ; {
		if !full {
			select {
			case <-d.p.Drift(): // more than once, if notifications arrive one after another
			case <-end:
				d.t.Fatalf("nothing was noticed, or repaired:\n%s", wrong)
			}
		}
		_, err := d.p.Audit(d.t.Context(), full)
		if errors.Is(err, plane.ErrStateLost) {
			_, err = d.p.Reset(d.t.Context(), d.table)
		}
		must(d.t, err)
		switch wrong = right(); {
		case wrong == "":
			return
		case full:
			d.t.Fatal(wrong)
		}
	}
}

// The plane repairs any foreign change of ipsets and addresses: addresses at once, ipsets in the
// next full audit (DP-31, DP-32).
func TestDamage(t *testing.T) {
	eachDamaged := func(name string, full bool, damage func(d *kernelBench)) {
		for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
			t.Run(name+"/"+f.String(), func(t *testing.T) {
				d := newDamaged(t, f)
				before := d.state()
				damage(d)
				if d.state() == before {
					t.Error("nothing was damaged")
				}
				d.repairs(full, func() string { return golden.Diff(before, d.state()) })
			})
		}
	}
	name := func(d *kernelBench, s set) string { return s.name(d.World.Family) }
	device := func(d *kernelBench) netlink.Link {
		l, err := netlink.LinkByName(Device)
		must(d.t, err)
		return l
	}
	recreate := func(d *kernelBench) {
		must(d.t, netlink.LinkAdd(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: Device},
			LinkType: DeviceType}))
	}
	inet := func(d *kernelBench) ipset.Family { return ipset.Family(wireFamily(d.World.Family)) }
	eachDamaged("flush a set", true, func(d *kernelBench) { d.run("", "ipset", "flush", name(d, setClusterIP)) })
	eachDamaged("flush all sets", true, func(d *kernelBench) { d.run("", "ipset", "flush") })
	eachDamaged("destroy a set", true, func(d *kernelBench) {
		d.run("", "ipset", "destroy", name(d, setMarksAnywhere))
	})
	eachDamaged("destroy all sets", true, func(d *kernelBench) { d.run("", "ipset", "destroy") })
	eachDamaged("a set of another type", true, func(d *kernelBench) {
		d.run(fmt.Sprintf("destroy %s\ncreate %[1]s hash:ip\n", name(d, setClusterIP)), "ipset", "restore")
	})
	eachDamaged("a set whose members go by themselves", true, func(d *kernelBench) {
		d.run(fmt.Sprintf("create other hash:ip,port family %s skbinfo timeout 5\nswap other %s\ndestroy other\n",
			inet(d), name(d, setMarksAnywhere)), "ipset", "restore")
	})
	eachDamaged("a set that is full", true, func(d *kernelBench) {
		d.run(fmt.Sprintf("create other hash:ip,port family %s maxelem 1\nadd other %s,tcp:1\nswap other %s\n"+
			"destroy other\n", inet(d), d.Addr(10, 77), name(d, setClusterIP)), "ipset", "restore")
	})
	eachDamaged("a member that is one too many", true, func(d *kernelBench) {
		d.run("", "ipset", "add", name(d, setIPs), d.Addr(10, 9999).String())
	})
	eachDamaged("another mark", true, func(d *kernelBench) {
		d.run("", "ipset", "add", "-exist", name(d, setMarksAnywhere), fmt.Sprintf("%s,tcp:80", d.Addr(10, 1)),
			"skbmark", "0x1/0xff")
	})
	eachDamaged("delete an address", false, func(d *kernelBench) {
		d.foreign(unix.RTM_DELADDR, d.indexOf(Device), d.Addr(10, 1), d.Addr(10, 1).BitLen())
	})
	eachDamaged("flush all addresses", false, func(d *kernelBench) { d.run("", "ip", "addr", "flush", "dev", Device) })
	eachDamaged("an address that is one too many", false, func(d *kernelBench) {
		d.foreign(unix.RTM_NEWADDR, d.indexOf(Device), d.Addr(10, 9999), d.Addr(10, 9999).BitLen())
	})
	eachDamaged("delete the device", false, func(d *kernelBench) {
		must(d.t, netlink.LinkDel(device(d)))
		recreate(d)
	})
	eachDamaged("rename the device", false, func(d *kernelBench) {
		must(d.t, netlink.LinkSetName(device(d), "mine"))
		mine, err := netlink.LinkByName("mine")
		must(d.t, err)
		recreate(d)
		must(d.t, netlink.LinkDel(mine))
	})
	eachDamaged("set the device up, and down", false, func(d *kernelBench) {
		must(d.t, netlink.LinkSetUp(device(d)))
		must(d.t, netlink.LinkSetDown(device(d)))
		if d.World.Family == lb.IPv4 { // whose addresses are unaffected
			d.foreign(unix.RTM_DELADDR, d.indexOf(Device), d.Addr(10, 1), d.Addr(10, 1).BitLen())
		}
	})
}

// Another interface gets a service address, and loses it. The address is bound, and a member of the
// set of bound addresses, only while no other interface has it (DP-31). New NodePort addresses get
// virtual servers.
func TestServiceAddressElsewhere(t *testing.T) {
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		t.Run(f.String(), func(t *testing.T) {
			d := newDamaged(t, f)
			before, vip := d.state(), d.Addr(10, 1)
			for range 2 {
				d.foreign(unix.RTM_NEWADDR, d.other.Attrs().Index, vip, vip.BitLen())
				d.repairs(false, func() string {
					got := d.state() + "\n"
					if strings.Contains(got, "address "+vip.String()+"\n") || strings.Contains(got, setIPs.name(f)+" "+
						vip.String()+"\n") {
						return "another interface has " + vip.String() + " too:\n" + got
					}
					return ""
				})
				d.leads(vip, true)
				d.foreign(unix.RTM_DELADDR, d.other.Attrs().Index, vip, vip.BitLen())
				d.repairs(false, func() string { return golden.Diff(before, d.state()) })
				d.leads(vip, true)
			}
			// Another interface has the address before the Service exists, and keeps it.
			late := d.Addr(10, 501)
			d.foreign(unix.RTM_NEWADDR, d.other.Attrs().Index, late, late.BitLen())
			d.repairs(false, func() string {
				if place, err := d.Place(t.Context()); err != nil || !place.Elsewhere[late] {
					return fmt.Sprint(place, err)
				}
				return ""
			})
			changes, _ := d.table.Replace(d.ClusterIP(500, 50, 2))
			must(t, only(d.p.Apply(t.Context(), changes)))
			if strings.Contains(d.state(), "address "+late.String()+"\n") {
				t.Errorf("%s is bound though another interface has it", late)
			}
		})
	}
}

// placeFails is a device that once fails to list the addresses of other devices.
type placeFails struct {
	*fakeDevice
	err error
}

func (d *placeFails) Place(ctx context.Context) (Place, error) {
	if err := d.err; err != nil {
		d.err = nil
		return Place{}, err
	}
	return d.fakeDevice.Place(ctx)
}

// If an audit fails, the next one handles its notifications, because they arrive only once.
func TestNewsOutliveAFailedAudit(t *testing.T) {
	k, w := newLab(t), planetest.World{Family: lb.IPv4}
	cfg := k.config(w.Family)
	device := &placeFails{fakeDevice: k.devs[w.Family]}
	cfg.Device = device
	p := New(cfg)
	defer p.Close()
	must(t, only(p.Reset(t.Context(), w.Table(3, 2))))
	k.others = append(k.others, w.Addr(10, 1))
	device.notice(false, true)
	device.err = unix.ENOBUFS
	if _, err := p.Audit(t.Context(), false); !errors.Is(err, unix.ENOBUFS) || !device.addrs[w.Addr(10, 1)] {
		t.Fatalf("%v, %v", err, device.addrs)
	}
	if _, err := p.Audit(t.Context(), false); err != nil || device.addrs[w.Addr(10, 1)] {
		t.Errorf("%v, %v", err, device.addrs)
	}
}

// If all writes fail, the error names some objects and their number, in one line of the log.
func TestErrorsAreBounded(t *testing.T) {
	k, w := newLab(t), planetest.World{Family: lb.IPv4}
	p := k.plane(t, w.Family)
	must(t, only(p.Reset(t.Context(), w.Table(1, 1))))
	table := w.Table(1000, 2)
	var changes []lb.Change
	for row := range table.All() {
		changes = append(changes, lb.Change{Key: row.Key, New: row})
	}
	k.refuse = func(string) error { return unix.ENOSPC }
	if _, err := p.Apply(t.Context(), changes); err == nil || len(err.Error()) > 2000 ||
		!strings.HasSuffix(err.Error(), " more") {
		t.Errorf("%.3000v", err)
	}
	k.refuse = nil
	if _, err := p.Apply(t.Context(), changes); err != nil {
		t.Error(err)
	}
}
