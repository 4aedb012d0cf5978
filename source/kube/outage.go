package kube

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// outage turns the errors of all streams into few log lines: one when a sort of error begins, one a
// minute while it lasts, one when all is well again. It also lets a single resource try while the
// server is away, see [outage.turn].
type outage struct {
	log    *slog.Logger
	server string

	mu       sync.Mutex
	failing  map[string]bool      // resources whose last attempt failed
	since    time.Time            // when the first of them failed
	reported map[string]time.Time // sorts of errors
	seen     map[string]int       // sorts of errors of this outage
	open     bool                 // a failure was reported, and its end was not

	away    *absence  // nil while the leader reaches the server
	refused time.Time // since when the server answers, but refuses the leader; zero if it does not
}

// absence is a time in which the leader does not reach the server.
type absence struct {
	since  time.Time
	over   chan struct{} // closed at its end
	spread time.Duration // in which the others then follow the leader
}

const (
	// repeat is the time between two lines about one sort of error.
	repeat = time.Minute
	// longestTurn is how long a resource waits for the leader.
	longestTurn = time.Minute
	// longestSpread bounds the time in which the others follow it.
	longestSpread = 10 * time.Second
	// silence is how long the others wait for the answer to the leader.
	silence = 2 * time.Second
	// startup is how long a server that has just started may refuse everything.
	startup = 2 * time.Second
)

func newOutage(log *slog.Logger, server string) *outage {
	return &outage{log: log, server: server, failing: map[string]bool{}, reported: map[string]time.Time{}}
}

// turn returns when a resource may turn to the server: at once while it answers. While it cannot be
// connected, only the leader tries, so that an outage costs a node one attempt instead of four. The
// others follow, spread over half of the outage. If the server refuses the leader, or keeps it
// waiting for longer than silence, the others need not wait: it may be the leader's trouble alone.
func (o *outage) turn(ctx context.Context, resource string) error {
	o.mu.Lock()
	away := o.away
	o.mu.Unlock()
	if away == nil || resource == leader {
		return nil
	}
	wait := time.After(longestTurn)
	select {
	case <-away.over:
		wait = time.After(rand.N(away.spread + 1))
	case <-wait:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-wait:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// lost makes the others wait for the leader.
func (o *outage) lost() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lose()
}

func (o *outage) lose() {
	if o.away == nil {
		o.away = &absence{since: time.Now(), over: make(chan struct{})}
	}
}

// found ends the wait for the leader.
func (o *outage) found() {
	if o.away != nil {
		o.away.spread = min(time.Since(o.away.since)/2, longestSpread)
		close(o.away.over)
		o.away = nil
	}
}

// asks takes note of a request, until done is called. The others do not wait for the leader while
// the server is silent.
func (o *outage) asks(resource string) (done func()) {
	if resource != leader {
		return func() {}
	}
	timer := time.AfterFunc(silence, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.found()
	})
	return func() { timer.Stop() }
}

// hungUp takes note of a server that ended a stream before it said anything.
func (o *outage) hungUp(resource string) {
	if resource != leader {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.found()
}

// lead takes note of a failure of the leader. If the server answers, the others need not wait. A
// server that has just started may forbid everything, so a refusal of this one resource counts if
// it lasts.
func (o *outage) lead(sort string, err error) {
	forbidden := strings.HasPrefix(sort, "403") || strings.HasPrefix(sort, "404")
	if !forbidden {
		o.refused = time.Time{}
	}
	_, away := errors.AsType[noConnection](err)
	switch {
	case away:
		o.lose()
	case !forbidden:
		o.found()
	case o.refused.IsZero():
		o.refused = time.Now()
		o.lose()
	case time.Since(o.refused) > startup:
		o.found()
	}
}

func (o *outage) failed(resource string, err error) {
	sort, why := classify(resource, err)
	if sort == "" {
		return
	}
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if resource == leader {
		o.lead(sort, err)
	}
	if len(o.failing) == 0 {
		o.since, o.seen = now, map[string]int{}
	}
	o.failing[resource] = true
	if now.Sub(o.reported[sort]) < repeat {
		return
	}
	// An API server that has just started forbids everything until it has read who may do what. So
	// within an outage another sort of error counts from its second time.
	o.seen[sort]++
	if o.open && o.seen[sort] == 1 {
		return
	}
	o.reported[sort], o.open = now, true
	args := []any{"reason", why, "resource", resource, "server", o.server, "err", err}
	if lasted := now.Sub(o.since).Round(time.Second); lasted > 0 {
		args = append(args, "for", lasted)
	}
	o.log.Error("Cannot watch the API server, the last known state stays in force", args...)
}

func (o *outage) over(resource string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if resource == leader {
		o.refused = time.Time{}
		o.found()
	}
	delete(o.failing, resource)
	if len(o.failing) == 0 && o.open {
		o.open = false
		o.log.Info("The API server answers again", "server", o.server, "outage",
			time.Since(o.since).Round(time.Millisecond))
	}
}

// connected reports whether the last attempt of every stream went well.
func (o *outage) connected() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.failing) == 0
}

// early reports streams that end soon after they were opened.
func (o *outage) early(resource string) {
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if now.Sub(o.reported["early"]) >= repeat {
		o.reported["early"] = now
		o.log.Warn("The API server, or a proxy in front of it, ends watches early; changes arrive late",
			"server", o.server, "resource", resource)
	}
}

// classify returns the sort of an error and what it means; "" for what is part of the protocol.
func classify(resource string, err error) (sort, why string) {
	_, badCert := errors.AsType[*tls.CertificateVerificationError](err)
	_, network := errors.AsType[net.Error](err)
	_, request := errors.AsType[*url.Error](err)
	switch {
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err),
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
		return "", ""
	case badCert:
		return "certificate", "the API server's certificate is not valid for us"
	case apierrors.IsUnauthorized(err):
		return "401", "the API server does not accept our credentials (401)"
	case apierrors.IsForbidden(err):
		return "403 " + resource, "we may not list and watch it (403)"
	case apierrors.IsNotFound(err):
		return "404 " + resource, "the API server does not know it (404)"
	case apierrors.IsTooManyRequests(err):
		return "429", "the API server is busy (429)"
	case network, request, utilnet.IsConnectionRefused(err), utilnet.IsConnectionReset(err),
		utilnet.IsProbableEOF(err):
		return "connection", "the API server cannot be reached"
	}
	return "other", "the API server fails"
}
