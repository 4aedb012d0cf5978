// Package ratelimit bounds what the proxy reports about the objects of tenants: log lines, events
// and claims. Each namespace has its own share, so that the flood of one never suppresses the first
// message about another.
package ratelimit

import (
	"log/slog"
	"strings"
	"sync"
	"time"
)

const (
	// Burst is how many messages a share allows at once. It regains one each Gap.
	Burst = 20
	Gap   = 30 * time.Second
	// ReportGap is the time between two lines about suppressed messages.
	ReportGap = time.Minute
	// MaxShares bounds the shares that one Limiter remembers. Namespaces beyond it have one share
	// together.
	MaxShares = 1000
)

// Limiter bounds messages of one kind, by namespace, and reports how many it suppressed. All
// messages together stay below MaxShares+1 shares. It is safe for concurrent use, and never writes
// while it holds its lock. Make one with [New].
type Limiter struct {
	log  *slog.Logger
	kind string

	mu     sync.Mutex
	shares map[string]*share // those that are not whole, or have suppressed messages to report
	rest   share             // of the namespaces beyond MaxShares
	swept  time.Time         // when whole shares were dropped last
	due    bool              // a line about suppressed messages is due
}

// share is what one namespace may report.
type share struct {
	whole      time.Time // when it allows Burst messages again
	suppressed int       // since the last line about it
}

// New returns a Limiter that logs how many messages of a kind, such as "Malformed object", it
// suppressed.
func New(log *slog.Logger, kind string) *Limiter {
	return &Limiter{log: log, kind: kind, shares: map[string]*share{}}
}

// Allow reports whether one more message may be written about the objects of a namespace, and
// counts it.
func (l *Limiter) Allow(namespace string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	s := l.of(namespace, now)
	if s.take(now) {
		return true
	}
	s.suppressed++
	if !l.due {
		l.due = true
		time.AfterFunc(ReportGap, l.report)
	}
	return false
}

// of returns the share of a namespace.
func (l *Limiter) of(namespace string, now time.Time) *share {
	if s := l.shares[namespace]; s != nil {
		return s
	}
	if len(l.shares) >= MaxShares && now.Sub(l.swept) >= Gap {
		l.swept = now
		for name, s := range l.shares {
			if s.suppressed == 0 && !s.whole.After(now) {
				delete(l.shares, name)
			}
		}
	}
	if len(l.shares) >= MaxShares {
		return &l.rest
	}
	s := &share{}
	l.shares[strings.Clone(namespace)] = s
	return s
}

// take counts one message if the share allows it.
func (s *share) take(now time.Time) bool {
	whole := s.whole
	if whole.Before(now) {
		whole = now
	}
	whole = whole.Add(Gap)
	if whole.Sub(now) > Burst*Gap {
		return false
	}
	s.whole = whole
	return true
}

// report logs what was suppressed since the last time.
func (l *Limiter) report() {
	messages, most, namespace := l.settle()
	l.log.Warn("Suppressed messages", "kind", l.kind, "messages", messages, "mostAbout", namespace, "ofThem", most)
}

// settle returns how many messages were suppressed, and the namespace with most of them; it forgets
// both.
func (l *Limiter) settle() (messages, most int, namespace string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	messages, most, namespace = l.rest.suppressed, l.rest.suppressed, "other namespaces"
	for name, s := range l.shares {
		messages += s.suppressed
		if s.suppressed > most {
			most, namespace = s.suppressed, name
		}
		s.suppressed = 0
	}
	l.rest.suppressed, l.due = 0, false
	return messages, most, namespace
}
