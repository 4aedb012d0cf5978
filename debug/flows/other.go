//go:build !linux

package flows

import (
	"context"
	"errors"
)

var errNoConntrack = errors.New("this operating system has no conntrack table")

// Find returns an error: this system has no conntrack.
func Find(context.Context, Query) (Found, error) { return Found{}, errNoConntrack }

func openFeed() (feed, error) { return nil, errNoConntrack }
