package engine

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/debug/changes"
	"kube-proxy/internal/ratelimit"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// Config says what an engine works with. Family, Plane and Store must be set.
type Config struct {
	Family lb.Family
	Plane  Plane
	// Store is asked for the services that Mark names, for the node's facts, and whether all sources have
	// listed.
	Store *cluster.Store

	// Settings are what the default Resolve and ResolveNode decide by; their Family is set by New.
	Settings policy.Settings
	// Resolve gives the rows of one service of this family, none for one that has gone; nil means policy.Resolve with
	// Settings.
	Resolve func(cluster.View) []*lb.Frontend
	// Budget, if not nil, says how many objects of its namespace's limit are left to a Service. It is told of each Service before
	// Resolve is, whose settings it has then ([Budget.Settings]).
	Budget *Budget
	// ResolveNode gives what the plane must know of this machine; nil means policy.ResolveNode with Settings.
	ResolveNode func(cluster.Facts) lb.Node

	// MinSyncPeriod is the least time between the end of one write and the start of the next; 0 means none
	// (DP-60).
	MinSyncPeriod time.Duration
	// AuditPeriod is the time between two full audits, give or take a tenth; 0 means 5 minutes, less than 0
	// means never.
	AuditPeriod time.Duration

	// Observers are told of accepted changes, in this order.
	Observers []Observer
	// Log is where failures and contests are told; nil means slog.Default().
	Log *slog.Logger
	// Written, if not nil, is called after each call of the plane that writes, from the engine's goroutine.
	Written func(Write)
	// Programmed, if not nil, is told how long each change of endpoints took that is in force now, from its trigger
	// ([cluster.Ref]) to the end of the write that has the last of its service's rows (SV-35, MT-04); 0 where the
	// trigger's clock is ahead. Changes for which no row had to be written are in force as soon as that is known.
	// It is called from the engine's goroutine.
	Programmed func(took []time.Duration)
	// Changes, if not nil, is told of what came into force and of what failed; the engines of both families may have the same.
	Changes *changes.Ring
	// Contested, if not nil, is called for each loss that is also logged as a warning (SV-24).
	Contested func(Loss)
	// Lent, if not nil, is called for each loan that is also logged as a warning (SV-24).
	Lent func(Loan)
}

// Engine keeps one plane at what the Store asks for. Make one with [New], and run it with [Engine.Run].
type Engine struct {
	cfg        Config
	minPeriod  atomic.Int64
	auditEvery atomic.Int64 // the period of full audits
	started    int64        // when it was made, in nanoseconds since 1970

	inbox inbox
	stats ledger

	// tableMu guards the table against Query; only the loop writes, while no write is in hand.
	tableMu sync.RWMutex
	table   *lb.Table

	// The rest belongs to the goroutine of Run.

	resolver resolver
	node     node
	pending  pending
	writer   writer
	resets   resets
	audits   audits
	withheld map[lb.Key]withheld // rows of health checks that observers are not told of yet
	noLocal  noLocal
	// Messages about Services: those that lost a key or got one on loan, and those whose rows fail. Rows that fail
	// together are the share of the namespace "".
	contests, loans, failures *ratelimit.Limiter
	panics                    once // whose stack was logged
	said                      once // other errors that were logged
}

// New returns an engine that has done nothing yet.
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
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	cfg.Log = cfg.Log.With("family", cfg.Family.String())
	e := &Engine{
		cfg:     cfg,
		inbox:   inbox{wake: make(chan struct{}, 1), synced: cfg.Store != nil && cfg.Store.Synced()},
		table:   &lb.Table{Family: cfg.Family},
		pending: newPending(),
		resets:  resets{due: true},
		started: time.Now().UnixNano(),
	}
	e.contests = ratelimit.New(cfg.Log, "service lost an address and port to another")
	e.loans = ratelimit.New(cfg.Log, "service has an address of the service network")
	e.failures = ratelimit.New(cfg.Log, "row not written")
	e.minPeriod.Store(int64(cfg.MinSyncPeriod))
	e.SetAuditPeriod(cfg.AuditPeriod)
	return e
}

// defaultAuditPeriod is what an AuditPeriod of 0 means.
const defaultAuditPeriod = 5 * time.Minute

// SetAuditPeriod changes Config.AuditPeriod; it may be called at any time from any goroutine. The next full audit
// is planned anew.
func (e *Engine) SetAuditPeriod(d time.Duration) {
	if d == 0 {
		d = defaultAuditPeriod
	}
	e.auditEvery.Store(int64(d))
	e.inbox.ring()
}

// SetMinSyncPeriod changes Config.MinSyncPeriod; it may be called at any time from any goroutine.
func (e *Engine) SetMinSyncPeriod(d time.Duration) {
	e.minPeriod.Store(int64(d))
	e.inbox.ring()
}

// Query calls f with the desired table. f must only read, must not keep the table, and should be short: new
// events are not taken in while it runs. It may be called from any goroutine.
func (e *Engine) Query(f func(*lb.Table)) {
	e.tableMu.RLock()
	defer e.tableMu.RUnlock()
	f(e.table)
}
