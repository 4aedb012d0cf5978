package kube

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"kube-proxy/internal/pause"
)

// throttle slows the requests of one resource: after streams that broke, and as the server asks.
type throttle struct {
	// notBefore is when the server wants the next request. It belongs to the Reflector's goroutine.
	notBefore time.Time
	// short is how many streams in a row broke within shortLife.
	short atomic.Int32
}

const (
	// firstRest is the time between a stream that broke and the next one, but for jitter. In it the
	// leader's stream breaks too if the connection did, and the others wait for their turn.
	firstRest = 100 * time.Millisecond
	// shortLife is what a stream must live for the next one to be opened at once.
	shortLife = 10 * time.Second
	// manyShort is how many short streams in a row are worth a line.
	manyShort = 3
	// longestRest bounds the time between a short stream and the next one, but for jitter.
	longestRest = 3 * time.Second
)

// rest waits before the next stream if the last one broke, longer if several did soon after they
// were opened.
func (t *throttle) rest(ctx context.Context, broken bool) error {
	delay := firstRest
	switch short := t.short.Load(); {
	case short > 1:
		delay = min(firstRest<<min(short, 10), longestRest)
	case !broken:
		return ctx.Err()
	}
	pause.For(ctx, delay+rand.N(delay))
	return ctx.Err()
}

// lived counts short streams, and reports whether there are now many.
func (t *throttle) lived(lived time.Duration) (many bool) {
	if lived >= shortLife {
		t.short.Store(0)
		return false
	}
	return t.short.Add(1) == manyShort
}

// obey waits until the server wants the next request.
func (t *throttle) obey(ctx context.Context) error {
	pause.For(ctx, time.Until(t.notBefore))
	return ctx.Err()
}

// refused notes what a refusal says about the next request. client-go would repeat the request by
// itself, but what the resources have seen must be known when the request is sent that is answered.
func (t *throttle) refused(err error) {
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		t.notBefore = time.Now().Add(min(time.Duration(seconds)*time.Second, longestTurn))
	}
}
