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
	"time"
)

const (
	// callTimeout is how long HNS may take for a call. A list of thousands takes seconds.
	callTimeout = time.Minute
	// mostHanging is how many calls may be without an answer at a time: they cannot be taken back, and each holds a thread.
	mostHanging = 4
)

// limit bounds the calls that are under way.
type limit struct{ free chan struct{} }

func newLimit(n int) *limit { return &limit{free: make(chan struct{}, n)} }

// within makes a call, and does not wait for it longer than callTimeout, nor than the context lasts: the call itself goes on.
func within[T any](ctx context.Context, l *limit, f func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
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
	go func() {
		defer func() { <-l.free }()
		t, err := f()
		answers <- answer{t, err}
	}()
	select {
	case a := <-answers:
		return a.t, a.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// winCode is how hnslib puts the code of Windows into the text of an error; its type has no other way to it for all calls.
var winCode = regexp.MustCompile(`\(0x([0-9a-f]{1,8})\)`)

// refusal says what an error of hnslib means.
func refusal(call, object string, err error) *Error {
	e := &Error{Call: call, Object: object, Kind: ErrFailed, Text: err.Error()}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		e.Kind = ErrTimeout
		return e
	}
	if m := winCode.FindStringSubmatch(e.Text); m != nil {
		code, _ := strconv.ParseUint(m[1], 16, 32) // eight digits at most
		e.Code = uint32(code)
		e.Kind = KindOf(e.Code)
	}
	return e
}

// between reports whether a version is in a range, both ends included.
func between(major, minor, fromMajor, fromMinor, toMajor, toMinor int) bool {
	version := []int{major, minor}
	return slices.Compare(version, []int{fromMajor, fromMinor}) >= 0 && slices.Compare(version, []int{toMajor, toMinor}) <= 0
}

// at reports whether the endpoint is in the network and has the address.
func (e *Endpoint) at(network string, a netip.Addr) bool {
	return strings.EqualFold(e.HostComputeNetwork, network) && slices.ContainsFunc(e.IPConfigurations, func(c IPConfig) bool {
		has, err := netip.ParseAddr(c.IPAddress)
		return err == nil && has == a
	})
}

// about is what people know the load balancer by.
func (l *LoadBalancer) about() string {
	if s, ok := shapeOf(*l); ok {
		return s.key().String()
	}
	return l.ID
}

// hostMAC returns the hardware address of this machine's interface with the address, as HNS writes it; "" for the address "".
func hostMAC(address string) (string, error) {
	if address == "" {
		return "", nil
	}
	all, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("looking for the hardware address of %s: %w", address, err)
	}
	for _, i := range all {
		addrs, _ := i.Addrs() // of an interface that has just gone
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().String() == address {
				return strings.ToUpper(strings.ReplaceAll(i.HardwareAddr.String(), ":", "-")), nil
			}
		}
	}
	return "", fmt.Errorf("looking for the hardware address of %s: no interface has it", address)
}
