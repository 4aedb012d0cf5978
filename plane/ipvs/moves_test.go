//go:build linux

package ipvs

import (
	"time"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// move is a change of a table that touches all kinds of objects.
type move struct {
	name string
	make func(*lb.Table, planetest.World) []lb.Change
}

func replaced(t *lb.Table, o lb.Owner, fronts []*lb.Frontend) []lb.Change {
	changes, _ := t.Replace(o, fronts)
	return changes
}

func moves() []move {
	return []move{
		{"a Service more", func(t *lb.Table, w planetest.World) []lb.Change {
			o, f := w.Full(20, 900, 4, 2, time.Hour)
			return replaced(t, o, f)
		}},
		{"other endpoints", func(t *lb.Table, w planetest.World) []lb.Change {
			o, f := w.Full(10, 502, 5, 1, time.Hour)
			return replaced(t, o, f)
		}},
		{"none local", func(t *lb.Table, w planetest.World) []lb.Change {
			o, f := w.Full(10, 500, 5, 0, 0)
			return replaced(t, o, f)
		}},
		{"no endpoints", func(t *lb.Table, w planetest.World) []lb.Change {
			o, f := w.Full(10, 0, 0, 0, 0)
			return replaced(t, o, f)
		}},
		{"a Service less", func(t *lb.Table, w planetest.World) []lb.Change {
			return replaced(t, lb.Owner{Name: "ns/svc-10"}, nil)
		}},
	}
}

func startTable(w planetest.World) *lb.Table {
	t := w.Table(3, 2)
	t.Family = w.Family
	t.Replace(w.Full(10, 500, 5, 2, time.Hour))
	return t
}
