package main

import (
	"io"
	"log/slog"
)

// newLog returns the process's log: text lines with keys. Verbosity 0 and 1 show what an operator must know, from
// 2 on each write, from 4 on everything.
func newLog(w io.Writer, verbosity int) *slog.Logger {
	level := slog.LevelInfo
	switch {
	case verbosity >= 4:
		level = slog.LevelDebug
	case verbosity >= 2:
		level = levelWrite
	}
	log := slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: nameLevel}))
	slog.SetDefault(log)
	return log
}

// levelWrite is the level of the line about each write to the kernel.
const levelWrite = slog.LevelInfo - 1

func nameLevel(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.LevelKey && a.Value.Any() == levelWrite {
		a.Value = slog.StringValue("WRITE")
	}
	return a
}
