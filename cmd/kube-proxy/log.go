package main

import (
	"io"
	"log/slog"

	"kube-proxy/config"
	"kube-proxy/logging"
)

// newLog returns the process's log, as flags and file ask for. Verbosity 0 and 1 show what an operator must know,
// from 2 on each write, from 4 on everything. Where nobody asks for a format, lines are keys and values.
func newLog(c config.Logging, out, errOut io.Writer) (*logging.Log, error) {
	lc := logging.Config{
		Format: c.Format, Verbosity: c.Verbosity, FlushFrequency: c.FlushFrequency,
		ToStderr: c.ToStderr, AlsoToStderr: c.AlsoToStderr, StderrThreshold: c.StderrThreshold,
		Dir: c.Dir, OneOutput: c.OneOutput, File: c.File, FileMaxMB: c.FileMaxMB,
		SkipHeaders: c.SkipHeaders, SkipLogHeaders: c.SkipLogHeaders, AddDirHeader: c.AddDirHeader, BacktraceAt: c.BacktraceAt,
		SplitStream: c.SplitStream, InfoBufferSize: c.InfoBufferSize, Stdout: out, Stderr: errOut, Program: "kube-proxy",
	}
	if lc.Format == "" {
		lc.Format = "keys"
	}
	for _, m := range c.VModule {
		lc.VModule = append(lc.VModule, logging.Pattern{Pattern: m.Pattern, Verbosity: m.Verbosity})
	}
	log, err := logging.New(lc)
	if err != nil {
		return nil, err
	}
	slog.SetDefault(log.Logger())
	return log, nil
}
