// Package logging writes the process's log: a [log/slog.Logger] whose lines look and go where the flags of old
// kube-proxies say.
//
//	slog.Record ──▶ handler ──▶ one line ──▶ stderr, or files by severity, or both
//	                (level, vmodule)          (threshold, one output, rotation)
//
// A line of the text format has the header that tools for Kubernetes' logs know, then the message in quotes, then
// keys and values:
//
//	I1121 13:09:01.123456    1234 run.go:33] "kube-proxy starts" mode="nftables" pid=1234
//
// The letter is the severity: I, W, E or F; then month and day, time, process id, source. The json format has an
// object a line with ts (milliseconds), caller, msg, v for information, and the keys. The format "keys" is that of
// [log/slog.NewTextHandler].
//
// Verbosity and levels: a record of level Info-n shows at verbosity 2n and more, so that Info is 0, and Debug,
// which is Info-4, is shown from 4 on; see [Show].
package logging
