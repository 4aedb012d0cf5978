package kube

import (
	"log/slog"

	"github.com/go-logr/logr/funcr"
	"k8s.io/klog/v2"
)

// maxVerbosity is klog's verbosity up to which lines are of interest.
const maxVerbosity = 4

// clientLog returns the logger for client-go, which writes all lines, errors included, to log at
// level debug. [outage] reports what an operator should know.
func clientLog(log *slog.Logger) klog.Logger {
	return funcr.New(func(part, line string) { log.Debug("client-go: " + part + " " + line) },
		funcr.Options{Verbosity: maxVerbosity})
}
