package rollback

import (
	"maps"
	"math/rand/v2"
	"testing"
)

type thing struct {
	name string
	n    int
}

// Undo restores maps and values after any changes, also repeated ones, and a Log can be used again.
func TestUndo(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		kernel := map[int]*thing{}
		values := map[string]int{}
		for i := range 5 {
			kernel[i] = &thing{n: i}
			values[string(rune('a'+i))] = i
		}
		log := &Log{}
		for range 2 {
			wasKernel, wasValues, wasThings := maps.Clone(kernel), maps.Clone(values), map[int]thing{}
			for k, v := range kernel {
				wasThings[k] = *v
			}
			for range 20 {
				k, s := rnd.IntN(8), string(rune('a'+rnd.IntN(8)))
				switch rnd.IntN(5) {
				case 0:
					Put(log, kernel, k, &thing{name: "new"})
				case 1:
					Delete(log, kernel, k)
				case 2:
					Put(log, values, s, rnd.Int())
				case 3:
					Delete(log, values, s)
				default:
					if v := kernel[k]; v != nil {
						Value(log, v)
						v.name, v.n = "changed", rnd.Int()
					}
				}
			}
			log.Undo()
			if !maps.Equal(kernel, wasKernel) || !maps.Equal(values, wasValues) {
				t.Fatalf("seed %d: %v, %v\nwant %v, %v", seed, kernel, values, wasKernel, wasValues)
			}
			for k, v := range kernel {
				if *v != wasThings[k] {
					t.Fatalf("seed %d: thing %d is %v, want %v", seed, k, *v, wasThings[k])
				}
			}
		}
	}
}

// With a nil Log, changes take effect, and cost nothing.
func TestNilLog(t *testing.T) {
	m, v := map[int]int{}, 0
	if n := testing.AllocsPerRun(10, func() { Put(nil, m, 1, 1); Value(nil, &v); Delete(nil, m, 1) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	Put(nil, m, 1, 1)
	if m[1] != 1 {
		t.Error("nothing was put")
	}
}

// Undo calls functions in the reverse order, once: what changes after it stays.
func TestUndoOnce(t *testing.T) {
	m, order := map[string]int{"gone": 1}, ""
	log := &Log{}
	Func(nil, func() { t.Error("a function of no Log was called") })
	Func(log, func() { order += "first" })
	Delete(log, m, "gone")
	Put(log, m, "new", 2)
	Func(log, func() { order += "last " })
	if want := map[string]int{"new": 2}; !maps.Equal(m, want) {
		t.Errorf("%v, want %v", m, want)
	}
	for range 2 {
		log.Undo()
		if want := "last first"; m["gone"] != 1 || order != want {
			t.Errorf("%v, order %q, want %q", m, order, want)
		}
		if _, is := m["new"]; is != (m["later"] == 3) {
			t.Errorf("after Undo: %v", m)
		}
		m["new"], m["later"] = 4, 3
	}
}
