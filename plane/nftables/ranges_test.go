//go:build linux

package nftables

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/plane/internal/ranges"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
)

// restricted returns a Service with a number of ports that all have the same source ranges.
func restricted(w planetest.World, i, ports int, sources []netip.Prefix) (lb.Owner, []*lb.Frontend) {
	name := fmt.Sprintf("ns/restricted-%d", i)
	var fronts []*lb.Frontend
	for port := range ports {
		service := fmt.Sprintf("%s:p%d", name, port)
		fronts = append(fronts, &lb.Frontend{
			Key:     lb.Key{Addr: w.Addr(198, i), Port: uint16(1 + port), Proto: lb.TCP},
			Service: service, Kind: lb.LoadBalancer, Sources: sources,
			Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: w.Set(service, lb.Cluster, 1, 2)}},
		})
	}
	return lb.Owner{Name: name}, fronts
}

// someRanges returns n ranges of that length, different ones for each from.
func someRanges(w planetest.World, from, n, bits int) []netip.Prefix {
	var all []netip.Prefix
	for i := range n {
		p, err := w.Addr(byte(11+(from+i)>>16), (from+i)&0xffff).Prefix(bits)
		if err != nil {
			panic(err)
		}
		all = append(all, p)
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

// The cost of a Service is its ports plus its ranges, not their product. The cost of changing
// ranges is the size of the change, however many ports and ranges the Service and others have.
func TestCostOfSourceRanges(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(t *testing.T, w planetest.World) {
		tab := w.Table(3, 2)
		p := started(t, w, tab)
		all := w.Addr(0, 0).BitLen()
		bytesOf := func(i, ports int, sources []netip.Prefix) uint64 {
			before := p.Stats()
			apply(t, p, planetest.Changes(tab.Replace(restricted(w, i, ports, sources))))
			return p.Stats().minus(before).Bytes
		}
		bytesOf(1, 1, someRanges(w, 0, 1, all)) // the chains that all Services share
		ports, ranges := bytesOf(2, 300, someRanges(w, 0, 1, all)), bytesOf(3, 1, someRanges(w, 0, 300, all))
		if both := bytesOf(4, 300, someRanges(w, 1000, 300, all)); both > 3*(ports+ranges)/2 {
			t.Errorf("300 ports take %d bytes, 300 ranges %d, both %d", ports, ranges, both)
		}
		if again := bytesOf(5, 300, someRanges(w, 1000, 300, all)); again > 3*ports/2 {
			t.Errorf("a Service with ranges that another one has takes %d bytes, with one range %d", again, ports)
		}
		// So 4 no longer shares its list.
		apply(t, p, planetest.Changes(tab.Replace(restricted(w, 5, 300, someRanges(w, 2000, 300, all)))))
		for i := 10; i < 110; i++ {
			bytesOf(i, 1, someRanges(w, 5000+i*300, 300, all))
		}
		if more := bytesOf(4, 300, someRanges(w, 1000, 301, all)); more > 1000 {
			t.Errorf("one range more takes %d bytes", more)
		}
		if n := p.Stats().Messages; n == 0 {
			t.Error("nothing was sent")
		}
		want := fresh(t, w.Family, tab)
		dumpUntil(t, p, func(got string) bool { return got == want }, want)
	})
}

// Lists are added, changed, shared and removed at random, some batches fail, and processes succeed
// each other. The table equals the result of a fresh start, and the state matches it.
func TestSourceListsWalk(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(t *testing.T, w planetest.World) {
		rnd := rand.New(rand.NewPCG(1, 2))
		tab := w.Table(2, 2)
		p := started(t, w, tab)
		bits := w.Addr(0, 0).BitLen()
		pool := make([][]netip.Prefix, 6)
		for i := range pool {
			for range 1 + rnd.IntN(4) {
				pool[i] = append(pool[i], someRanges(w, rnd.IntN(4000), 1+rnd.IntN(5), bits-rnd.IntN(bits-8))...)
			}
			slices.SortFunc(pool[i], netip.Prefix.Compare)
			for j := 1; j < len(pool[i]); { // as policy orders them
				if pool[i][j-1].Overlaps(pool[i][j]) {
					pool[i] = slices.Delete(pool[i], j, j+1)
				} else {
					j++
				}
			}
		}
		for step := range 120 {
			var changes []lb.Change
			for range 1 + rnd.IntN(3) {
				i := rnd.IntN(8)
				o, f := restricted(w, i, 1+rnd.IntN(3), pool[rnd.IntN(len(pool))])
				switch rnd.IntN(5) {
				case 0:
					f = nil
				case 1:
					for _, x := range f {
						x.Sources = nil
					}
				case 2:
					f[0].Sources = pool[rnd.IntN(len(pool))]
				}
				c, _ := tab.Replace(o, f)
				if bad := tab.Refused(o.Name); len(bad) > 0 {
					t.Fatal(bad)
				}
				changes = append(changes, c...)
			}
			if step%7 == 0 { // refused as a whole
				bad := lb.Change{Key: lb.Key{Addr: w.Addr(9, 9), Port: 1, Proto: lb.TCP}, New: tab.Sorted()[0]}
				if _, err := p.Apply(t.Context(), append(slices.Clone(changes), bad)); err == nil {
					t.Fatal("a bad change was taken")
				}
			}
			apply(t, p, changes)
			if step%15 == 0 {
				p.Close()
				p = newPlane(t, w.Family)
				reset(t, p, tab)
				if s := p.Stats(); s.Bytes > 20_000 { // removes unused chains
					t.Errorf("step %d: a restart sent %+v", step, s)
				}
			}
			if n, err := p.Audit(t.Context(), step%4 == 0); n != 0 || err != nil {
				t.Fatalf("step %d: an audit repaired %d, %v", step, n, err)
			}
			if step%4 == 3 {
				isFresh(t, p, tab, "step %d", step)
			}
		}
	})
}

// Ranges of all lengths, cut into lengths that have rules, contain the same addresses, and their
// class has a rule for each length.
func FuzzRanges(f *testing.F) {
	f.Add([]byte{10, 0, 0, 0, 10, 3, 3, 3}, byte(8), byte(0))
	f.Add(make([]byte, 32), byte(51), byte(77))
	f.Fuzz(func(t *testing.T, b []byte, bits, flip byte) {
		n := 4
		if len(b) >= 32 {
			n = 16
		} else if len(b) < 8 {
			return
		}
		p := netip.PrefixFrom(wire.ParseAddr(b[:n]), int(bits)%(n*8+1)).Masked()
		client := slices.Clone(b[n : 2*n])
		if flip%2 == 0 { // close to the range
			copy(client, p.Addr().AsSlice())
			client[int(flip)%n] ^= 1 << (flip % 8)
		}
		c := wire.ParseAddr(client)
		list := ranges.Of([]netip.Prefix{p})
		if len(list) > 16 {
			t.Fatalf("%s became %d ranges", p, len(list))
		}
		in := false
		for _, length := range lengths(rule.IPOf(lb.FamilyOf(c)), eighths([]netip.Prefix{p})) {
			cut, _ := c.Prefix(length)
			in = in || slices.Contains(list, cut)
		}
		if in != p.Contains(c) {
			t.Errorf("%s in %s: %t, as %v: %t", c, p, p.Contains(c), list, in)
		}
	})
}

// BenchmarkSourceRanges writes a Service with source ranges, and changes another Service beside it.
func BenchmarkSourceRanges(b *testing.B) {
	w := planetest.World{Family: lb.IPv4}
	for _, bc := range []struct{ services, ports, ranges int }{{1, 300, 300}, {1, 100, 1000}, {1, 1, 100_000},
		{100, 1, 1000}} {
		b.Run(fmt.Sprintf("services=%d/ports=%d/ranges=%d", bc.services, bc.ports, bc.ranges), func(b *testing.B) {
			tab := w.Table(10, 2)
			p := started(b, w, tab)
			var changes, back []lb.Change
			for i := range bc.services {
				o, f := restricted(w, i, bc.ports, someRanges(w, i*bc.ranges, bc.ranges, 32))
				c, _ := tab.Replace(o, f)
				changes = append(changes, c...)
				for _, x := range c {
					back = append(back, lb.Change{Key: x.Key, Old: x.New})
				}
			}
			for b.Loop() {
				apply(b, p, changes)
				b.StopTimer()
				apply(b, p, back)
				b.StartTimer()
			}
		})
		b.Run(fmt.Sprintf("services=%d/ports=%d/ranges=%d/other", bc.services, bc.ports, bc.ranges),
			func(b *testing.B) {
				tab := w.Table(10, 2)
				for i := range bc.services {
					tab.Replace(restricted(w, i, bc.ports, someRanges(w, i*bc.ranges, bc.ranges, 32)))
				}
				p := started(b, w, tab)
				i := 0
				for b.Loop() {
					i++
					o, f := restricted(w, 5000, 1, someRanges(w, 900_000+i%2, 3, 32))
					apply(b, p, planetest.Changes(tab.Replace(o, f)))
				}
			})
	}
}
