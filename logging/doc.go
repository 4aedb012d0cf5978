// Package logging sets up the process's log: a [log/slog.Logger] whose lines klog formats and
// writes, as the flags of kube-proxy configure.
//
//	slog.Record ──▶ handler ──▶ klog ──▶ stderr, or files by severity, or both
//	                (level, vmodule)     (or a JSON object a line)
//
// A line of the text format has klog's header, the message in quotes, then keys and values:
//
//	I1121 13:09:01.123456    1234 run.go:33] "Starting kube-proxy" mode="nftables" pid=1234
//
// The JSON format has an object a line with ts (milliseconds), caller, msg, the keys, and v for
// information or level for warnings and errors.
//
// A record of level Info-n shows at verbosity n and more: Info at 0, [LevelWrite] at 2, Debug at 4.
package logging
