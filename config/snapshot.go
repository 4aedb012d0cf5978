package config

import (
	"path"
	"time"

	"kube-proxy/config/option"
)

// Snapshot configures how a node serves after a reboot before its API server answers.
type Snapshot struct {
	// Dir is the directory of the snapshot; "" disables it.
	Dir string
	// MaxAge is the age at which a snapshot is rejected.
	MaxAge time.Duration
	// Ready: the node counts as ready while it serves from a snapshot.
	Ready bool
}

// snapshotBlock has the fields that the published type lacks.
type snapshotBlock struct {
	Snapshot       string          `json:"snapshot"`
	SnapshotMaxAge option.Duration `json:"snapshotMaxAge"`
	SnapshotReady  bool            `json:"snapshotReady"`
}

// minSnapshotAge is the least --snapshot-max-age: a snapshot is written at most every 30 s.
const minSnapshotAge = time.Minute

func (o *Options) snapshotSection() option.Section {
	o.snapshot.SnapshotMaxAge.Duration = 24 * time.Hour
	const restart = "a snapshot serves the start"
	return option.Section{Title: "Node and API server", Order: 21, Values: o.snapshot, Fields: []option.Field{
		{Path: "snapshot", Flag: "snapshot", Row: "SN-01", Restart: restart, Effect: onLinux,
			Help: "`directory` for a snapshot of Services and endpoints; after a reboot the node serves from it " +
				"until the API server answers. Its parent must exist; the directory is created for root only " +
				"(0700). Empty disables snapshots"},
		{Path: "snapshotMaxAge", Flag: "snapshot-max-age", Row: "SN-02", Restart: restart, Effect: onLinux,
			Help: "age at which a snapshot is rejected, at least 1m"},
		{Path: "snapshotReady", Flag: "snapshot-ready", Row: "SN-03", Restart: restart, Effect: onLinux,
			Help: "the node is ready while it serves from a snapshot: /readyz, /healthz and health check ports " +
				"answer 200"},
	}}
}

func (o *Options) checkSnapshot(r *option.Report) Snapshot {
	s := Snapshot{Dir: o.snapshot.Snapshot, MaxAge: o.snapshot.SnapshotMaxAge.Duration, Ready: o.snapshot.SnapshotReady}
	if s.Dir != "" && (!path.IsAbs(s.Dir) || path.Clean(s.Dir) != s.Dir || s.Dir == "/") {
		r.Wrong("snapshot", s.Dir, "want an absolute path such as /var/lib/kube-proxy, without a slash at its end, "+
			"or nothing for no snapshot")
	}
	if s.MaxAge < minSnapshotAge {
		r.Wrong("snapshotMaxAge", s.MaxAge.String(), "want "+minSnapshotAge.String()+" or more")
	}
	if s.Dir != "" && o.Manifests != "" {
		o.warn("%s has no effect with --manifests: the folder is there after a reboot", o.where("snapshot"))
	}
	return s
}
