package inspect

import (
	"context"
	"fmt"
	"slices"

	"kube-proxy/internal/pause"
	"kube-proxy/lb"
	"kube-proxy/trace"
)

// maxDifferences is how many differences an answer names.
const maxDifferences = 1000

// Diff compares the kernel with the desired table. If they differ it compares again and reports the
// differences found both times: a write in progress is no difference. One query compares at a time;
// others wait.
func (i *Inspector) Diff(ctx context.Context) (*Diff, error) {
	if i.cfg.Offline {
		return nil, Problemf(Unavailable, "no kernel to compare with offline: query a running proxy")
	}
	select {
	case i.comparing <- struct{}{}:
		defer func() { <-i.comparing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	out := &Diff{Node: i.Node(), Differences: []Difference{}}
	if i.cfg.NodeProblems != nil {
		out.Others = otherRules(i.cfg.NodeProblems())
	}
	for _, f := range i.cfg.Families {
		if f.Tracer == nil {
			out.Notes = append(out.Notes, fmt.Sprintf("%s: cannot read the kernel state in mode %s", f.Family,
				i.cfg.Mode.Name))
			continue
		}
		differences, rows, err := i.differences(ctx, f)
		if err != nil {
			return nil, Problemf(Unavailable, "%s: reading the kernel state: %v", f.Family, err)
		}
		out.Frontends += rows
		for _, d := range differences {
			if len(out.Differences) == maxDifferences {
				out.More++
				continue
			}
			out.Differences = append(out.Differences, d)
		}
		if f.Stats != nil && len(differences) > 0 && !f.Stats().Settled {
			out.Notes = append(out.Notes,
				fmt.Sprintf("%s: the proxy is still writing changes: retry, or see kube-proxy events", f.Family))
		}
	}
	return out, nil
}

// differences returns those that were found each time.
func (i *Inspector) differences(ctx context.Context, f Family) (stayed []Difference, rows int, err error) {
	for look := 1; ; look++ {
		table := i.copyTable(f)
		rows = table.Len()
		var now []Difference
		err := f.Tracer.Differences(ctx, table, func(d trace.Difference) bool {
			now = append(now, difference(f, table, d))
			return len(now) < 100*maxDifferences
		})
		if err != nil {
			return nil, 0, err
		}
		if look == 1 {
			stayed = now
		} else {
			again := make(map[Difference]bool, len(now))
			for _, d := range now {
				again[d] = true
			}
			stayed = slices.DeleteFunc(stayed, func(d Difference) bool { return !again[d] })
		}
		if len(stayed) == 0 || look == looks {
			return stayed, rows, nil
		}
		if !pause.For(ctx, inspectPause) {
			return nil, 0, ctx.Err()
		}
	}
}

func difference(f Family, table *lb.Table, d trace.Difference) Difference {
	out := Difference{Family: f.Family.String(), Object: d.Object, Desired: d.Desired, Actual: d.Actual}
	if d.Key != (lb.Key{}) {
		out.Key = d.Key.String()
		if row := table.Get(d.Key); row != nil {
			out.Service = row.Service
		}
	}
	return out
}

// copyTable copies the desired table of a family, for uses that take longer than the engine could
// wait. Frontends are shared.
func (i *Inspector) copyTable(f Family) *lb.Table {
	out := &lb.Table{Family: f.Family}
	for _, name := range i.Names() {
		rows := f.owned(name).rows
		if len(rows) == 0 {
			continue
		}
		owner := lb.Owner{Name: name.String()}
		if svc := i.cfg.Store.View(name).Service; svc != nil {
			owner.Created = svc.Created
		}
		out.Replace(owner, slices.Clone(rows))
	}
	f.Query(func(t *lb.Table) { out.Node = t.Node })
	return out
}
