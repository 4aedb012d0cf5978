package engine

import (
	"cmp"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/debug/changes"
	"kube-proxy/internal/once"
	"kube-proxy/internal/ratelimit"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// Config configures an engine. Family, Plane and Store must be set.
type Config struct {
	Family lb.Family
	Plane  Plane
	// Store supplies the Services that Mark names, the node's facts, and whether all sources have
	// listed.
	Store *cluster.Store

	// Settings are the settings of the default Resolve and ResolveNode; New sets their Family.
	Settings policy.Settings
	// Resolve returns the frontends of one Service in this family, none for a deleted Service; nil
	// means policy.Resolve with Settings.
	Resolve func(cluster.View) []*lb.Frontend
	// Budget, if not nil, returns how many objects its namespace's limit leaves to a Service. The
	// engine weighs each Service before it calls Resolve, which then uses [Budget.Settings].
	Budget *Budget
	// ResolveNode returns the facts of this machine that the plane needs; nil means
	// policy.ResolveNode with Settings.
	ResolveNode func(cluster.Facts) lb.Node

	// MinSyncPeriod is the least time between the end of one write and the start of the next; 0
	// means no wait (DP-60).
	MinSyncPeriod time.Duration
	// AuditPeriod is the time between two full audits, plus or minus 10 %; 0 means 5 minutes, a
	// negative value means never.
	AuditPeriod time.Duration

	// Observers receive accepted changes, in this order.
	Observers []Observer
	// Log receives failures and conflicts; nil means slog.Default().
	Log *slog.Logger
	// Written, if not nil, is called after each writing call of the plane, from the engine's
	// goroutine.
	Written func(Write)
	// Programmed, if not nil, receives the latency of each change of endpoints that came into
	// force: from its trigger ([cluster.Ref]) to the end of the write with the last frontend of its
	// Service (SV-35, MT-04); 0 where the trigger's clock is ahead. A change that needs no write is
	// in force as soon as the engine finds that out. Programmed is called from the engine's
	// goroutine.
	Programmed func(took []time.Duration)
	// Changes, if not nil, receives the changes that came into force and the failures; the engines
	// of both families may share it.
	Changes *changes.Ring
	// Contested, if not nil, is called for each loss that is also logged as a warning (SV-24).
	Contested func(Loss)
	// Lent, if not nil, is called for each provisional owner that is also logged as a warning
	// (SV-24).
	Lent func(ProvisionalOwner)
}

// Engine keeps one plane in the state that the Store describes. Make one with [New], and run it
// with [Engine.Run].
type Engine struct {
	cfg        Config
	minPeriod  atomic.Int64
	auditEvery atomic.Int64 // the period of full audits
	started    int64        // when it was made, in nanoseconds since 1970

	inbox inbox
	stats ledger

	// tableMu guards the table against Query; only the loop writes it, while the plane writes
	// nothing.
	tableMu sync.RWMutex
	table   *lb.Table

	// The rest belongs to the goroutine of Run.

	resolver resolver
	node     node
	pending  pending
	writer   writer
	resets   resets
	audits   audits
	withheld map[lb.Key]withheld // frontends of health checks that observers must not see yet
	noLocal  noLocal
	// Limits of messages about Services: of lost keys, of provisionally owned keys, and of failed
	// frontends. Frontends that fail together count for the namespace "".
	conflicts, provisionalOwners, failures *ratelimit.Limiter
	panics                                 once.Keys[string] // whose stack was logged
	said                                   once.Keys[string] // other errors that were logged
}

// New returns an engine; it does nothing before Run.
func New(cfg Config) *Engine {
	cfg.Settings.Family = cfg.Family
	if cfg.Resolve == nil {
		settings := cfg.Settings
		cfg.Resolve = func(v cluster.View) []*lb.Frontend { return policy.Resolve(v, settings) }
	}
	if cfg.ResolveNode == nil {
		settings := cfg.Settings
		cfg.ResolveNode = func(f cluster.Facts) lb.Node { return policy.ResolveNode(f, settings) }
	}
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	cfg.Log = cfg.Log.With("family", cfg.Family.String())
	e := &Engine{
		cfg:     cfg,
		inbox:   inbox{wake: make(chan struct{}, 1), synced: cfg.Store != nil && cfg.Store.Synced()},
		table:   &lb.Table{Family: cfg.Family},
		pending: newPending(),
		resets:  resets{due: true},
		started: time.Now().UnixNano(),
	}
	e.conflicts = ratelimit.New(cfg.Log, "Service lost an address and port to another Service")
	e.provisionalOwners = ratelimit.New(cfg.Log, "Service uses an address of the service network")
	e.failures = ratelimit.New(cfg.Log, "Failed to write a frontend")
	e.minPeriod.Store(int64(cfg.MinSyncPeriod))
	e.SetAuditPeriod(cfg.AuditPeriod)
	return e
}

// defaultAuditPeriod replaces an AuditPeriod of 0.
const defaultAuditPeriod = 5 * time.Minute

// SetAuditPeriod changes Config.AuditPeriod and reschedules the next full audit. It may be called
// at any time from any goroutine.
func (e *Engine) SetAuditPeriod(d time.Duration) {
	d = cmp.Or(d, defaultAuditPeriod)
	e.auditEvery.Store(int64(d))
	e.inbox.ring()
}

// SetMinSyncPeriod changes Config.MinSyncPeriod; it may be called at any time from any goroutine.
func (e *Engine) SetMinSyncPeriod(d time.Duration) {
	e.minPeriod.Store(int64(d))
	e.inbox.ring()
}

// Query calls f with the desired table. f must only read, must not keep the table, and should be
// short: the engine takes in no events while f runs. Query may be called from any goroutine.
func (e *Engine) Query(f func(*lb.Table)) {
	e.tableMu.RLock()
	defer e.tableMu.RUnlock()
	f(e.table)
}
