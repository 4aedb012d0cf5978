package inspect

import (
	"errors"
	"slices"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/debug/changes"
)

// Changes returns the changes after the entry of that number, 0 for all recorded ones, without
// those that had no effect on a family.
func (i *Inspector) Changes(after uint64) Changes {
	entries, newest := i.cfg.Changes.After(after)
	_, gone := i.cfg.Changes.Counts()
	out := Changes{Node: i.Node(), Changes: make([]Change, 0, len(entries)), Newest: newest, Gone: gone}
	for _, e := range entries {
		if !e.Elsewhere {
			out.Changes = append(out.Changes, change(e))
		}
	}
	return out
}

// Changed returns the Service that a query names: one that exists, or a deleted one with recorded
// changes.
func (i *Inspector) Changed(said string) (cluster.Name, error) {
	name, _, err := i.find(said)
	if p := (*Problem)(nil); !errors.As(err, &p) || p.Kind != Unknown {
		return name, err
	}
	var gone []cluster.Name
	entries, _ := i.cfg.Changes.After(0)
	for _, e := range entries {
		if e.Service.Name == name.Name && (name.Namespace == "" || e.Service.Namespace == name.Namespace) &&
			!slices.Contains(gone, e.Service) {
			gone = append(gone, e.Service)
		}
	}
	switch len(gone) {
	case 0:
		return name, err
	case 1:
		return gone[0], nil
	}
	slices.SortFunc(gone, cluster.Name.Compare)
	return name, ambiguous("Services that are gone", name.Name, gone)
}

// Of returns the changes that concern a Service: its own, and those of no single Service.
func (c Changes) Of(name cluster.Name) Changes {
	c.Service = name.String()
	c.Changes = slices.DeleteFunc(c.Changes, func(x Change) bool { return x.Service != "" && x.Service != c.Service })
	return c
}

// Newest returns the number of the newest change; 0 without a record.
func (i *Inspector) Newest() uint64 {
	newest, _ := i.cfg.Changes.Counts()
	return newest
}

func change(e changes.Entry) Change {
	c := Change{Seq: e.Seq, Kind: e.Kind.String(), Object: e.Object(), What: e.Words(), API: nanoseconds(e.API),
		Learned: nanoseconds(e.Learned), Done: nanoseconds(e.Done), Frontends: int(e.Frontends),
		Times: int(e.Times)}
	if e.Family != 0 {
		c.Family = e.Family.String()
	}
	if e.Service.Name != "" {
		c.Service = e.Service.String()
	}
	if e.Kind == changes.Failed {
		c.Error = e.Why
	}
	api, learned := e.Latency()
	c.SinceAPI, c.SinceLearned = milliseconds(api), milliseconds(learned)
	return c
}

func nanoseconds(ns int64) *time.Time {
	if ns == 0 {
		return nil
	}
	return when(time.Unix(0, ns).UTC())
}

// milliseconds converts a duration that may be unknown.
func milliseconds(d time.Duration) *float64 {
	if d < 0 {
		return nil
	}
	ms := float64(d) / float64(time.Millisecond)
	return &ms
}
