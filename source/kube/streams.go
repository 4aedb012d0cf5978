package kube

import (
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// streams knows whether the server sends lists as streams. It does where it is new enough, and its
// storage reports progress (etcd 3.4.25, 3.5.8 or later). One that does not says so at the first
// request, and is never asked again: a LIST does as well.
type streams struct {
	log *slog.Logger
	no  atomic.Bool
}

// errNoStreaming has a Reflector ask for a LIST.
var errNoStreaming = errors.New("kube: the API server has no streaming lists")

// refused takes note of an error that a streaming list began with, and reports whether it says that
// the server has none.
func (s *streams) refused(err error) bool {
	switch {
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err): // the server does not know them
	case apierrors.IsInternalError(err) && strings.Contains(err.Error(), "required storage feature"):
	default:
		return false
	}
	if !s.no.Swap(true) {
		s.log.Info("The API server does not stream lists, using lists that take more of its memory", "reason", err)
	}
	return true
}
