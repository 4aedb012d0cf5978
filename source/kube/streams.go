package kube

import (
	"errors"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// errNoStreaming has a Reflector ask for a LIST.
var errNoStreaming = errors.New("kube: the API server has no streaming lists")

// cannotStream takes note of an error that a streaming list began with, and reports whether it says
// that the server has none. A server has them where it is new enough, and its storage reports
// progress (etcd 3.4.25, 3.5.8 or later). One that does not says so at the first request, and is
// never asked again: a LIST does as well.
func (s *Source) cannotStream(err error) bool {
	switch {
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err): // the server does not know them
	case apierrors.IsInternalError(err) && strings.Contains(err.Error(), "required storage feature"):
	default:
		return false
	}
	if !s.noStreaming.Swap(true) {
		s.log.Info("The API server does not stream lists, using lists that take more of its memory", "reason", err)
	}
	return true
}
