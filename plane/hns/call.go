package hns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// callTimeout is for calls other than lists: single policies took 30 s
	// (kubernetes/kubernetes#109162).
	callTimeout = time.Minute
	// FirstList is the timeout of the first list. Later ones may take callTimeout, and objectTime
	// for each object of the last one: Windows Server 2019 took 110 minutes for 7,000 objects
	// (kubernetes/kubernetes#109124). After a timeout the next list may take twice as long, up to
	// longestList.
	FirstList   = 30 * time.Minute
	objectTime  = time.Second
	longestList = 4 * time.Hour
	// maxHanging limits unanswered calls. They cannot be cancelled, and each holds a thread.
	maxHanging = 4
	// An abandoned call keeps its place for that long. The time doubles whenever a call gives up
	// its place, until HNS answers, so an HNS that hangs forever holds few threads.
	abandoned = 10 * time.Minute
)

// limit bounds the calls in progress and their duration.
type limit struct {
	free    chan struct{}
	lists   sync.Map     // timeout of the next list, by the name of the call
	abandon atomic.Int64 // how long an abandoned call keeps its place
}

func newLimit(n int) *limit {
	l := &limit{free: make(chan struct{}, n)}
	l.abandon.Store(int64(abandoned))
	return l
}

// bounded makes a call and waits for it until the timeout or the end of the context. The call
// itself continues.
func bounded[T any](ctx context.Context, l *limit, timeout time.Duration, f func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var none T
	select {
	case l.free <- struct{}{}:
	case <-ctx.Done():
		return none, ctx.Err()
	}
	type answer struct {
		t   T
		err error
	}
	answers := make(chan answer, 1)
	release := sync.OnceFunc(func() { <-l.free })
	var ended atomic.Bool
	go func() {
		defer release()
		t, err := f()
		ended.Store(true)
		answers <- answer{t, err}
	}()
	select {
	case a := <-answers:
		l.abandon.Store(int64(abandoned))
		return a.t, a.err
	case <-ctx.Done():
		time.AfterFunc(time.Duration(l.abandon.Load()), func() {
			if !ended.Load() {
				l.abandon.Store(min(2*l.abandon.Load(), int64(24*time.Hour)))
				release()
			}
		})
		return none, ctx.Err()
	}
}

// listed is bounded for a list, with the timeout that the call of that name needs.
func listed[T any](ctx context.Context, l *limit, call string, f func() ([]T, error)) ([]T, error) {
	may := FirstList
	if known, ok := l.lists.Load(call); ok {
		may = known.(time.Duration)
	}
	all, err := bounded(ctx, l, may, func() (all []T, err error) {
		for range 3 { // hcn reads each listed object, and fails if one has gone meanwhile
			all, err = f()
			if err == nil || refusal(call, "", err).Kind != ErrNotFound {
				break
			}
		}
		return all, err
	})
	switch {
	case err == nil:
		l.lists.Store(call, callTimeout+time.Duration(len(all))*objectTime)
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		l.lists.Store(call, min(2*may, longestList))
	}
	return all, err
}

// winCode finds the Windows code in an error text of hnslib, which exports it nowhere else.
var winCode = regexp.MustCompile(`\(0x([0-9a-f]{1,8})\)`)

// refusal classifies an error of hnslib.
func refusal(call, object string, err error) *Error {
	e := &Error{Call: call, Object: object, Kind: ErrFailed, Text: err.Error()}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		e.Kind = ErrTimeout
		return e
	}
	if m := winCode.FindStringSubmatch(e.Text); m != nil {
		code, _ := strconv.ParseUint(m[1], 16, 32) // at most eight digits
		e.Code = uint32(code)
		e.Kind = KindOf(e.Code)
	}
	return e
}

// between reports whether a version is in a range, ends included.
func between(major, minor, fromMajor, fromMinor, toMajor, toMinor int) bool {
	version := []int{major, minor}
	return slices.Compare(version, []int{fromMajor, fromMinor}) >= 0 &&
		slices.Compare(version, []int{toMajor, toMinor}) <= 0
}

// about names the load balancer in errors.
func (l *LoadBalancer) about() string {
	if s, ok := shapeOf(*l); ok {
		return s.key().String()
	}
	return l.ID
}

// hostMAC returns the hardware address of this machine's interface with the address, as HNS writes
// it; "" for "".
func hostMAC(address string) (string, error) {
	if address == "" {
		return "", nil
	}
	all, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("finding the hardware address of %s: %w", address, err)
	}
	for _, i := range all {
		addrs, _ := i.Addrs() // the interface may have gone
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().String() == address {
				return strings.ToUpper(strings.ReplaceAll(i.HardwareAddr.String(), ":", "-")), nil
			}
		}
	}
	return "", fmt.Errorf("finding the hardware address of %s: no interface has it", address)
}
