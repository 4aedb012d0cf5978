package logging

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// text is the classic line: header, message in quotes, keys and values.
func (h *handler) text(line []byte, r slog.Record) []byte {
	if !h.log.cfg.SkipHeaders {
		line = h.log.header(line, r)
	}
	line = strconv.AppendQuote(line, r.Message)
	h.each(r, func(key string, v slog.Value) {
		line = append(line, ' ')
		line = append(line, key...)
		line = append(line, '=')
		line = appendValue(line, v)
	})
	return append(line, '\n')
}

// header is severity, date, time, process and source.
func (l *Log) header(line []byte, r slog.Record) []byte {
	at := r.Time
	if at.IsZero() {
		at = time.Now()
	}
	file, number := "???", 1
	if r.PC != 0 {
		file, number = source(r.PC)
		dir := filepath.Base(filepath.Dir(file))
		file = filepath.Base(file)
		if l.cfg.AddDirHeader {
			file = dir + "/" + file
		}
	}
	line = append(line, "IWEF"[severityOf(r.Level)])
	line = at.AppendFormat(line, "0102 15:04:05.000000")
	return fmt.Appendf(line, " %7d %s:%d] ", os.Getpid(), file, number)
}

// appendValue writes text in quotes, and what reads well without as it is.
func appendValue(line []byte, v slog.Value) []byte {
	switch v.Kind() {
	case slog.KindBool, slog.KindInt64, slog.KindUint64, slog.KindFloat64:
		return append(line, v.String()...)
	case slog.KindAny:
		if err, ok := v.Any().(error); ok {
			return strconv.AppendQuote(line, err.Error())
		}
	}
	return strconv.AppendQuote(line, v.String())
}

// json is one object.
func (h *handler) json(line []byte, r slog.Record) ([]byte, error) {
	buf := bytes.NewBuffer(line)
	var failed error
	put := func(key string, value any) {
		name, err := json.Marshal(key)
		text, bad := json.Marshal(value)
		if bad != nil { // no value is worth losing the line
			text, bad = json.Marshal(fmt.Sprint(value))
		}
		if failed == nil && (err != nil || bad != nil) {
			failed = fmt.Errorf("write key %q", key)
		}
		buf.Write(append(append(append(name, ':'), text...), ','))
	}
	buf.WriteByte('{')
	fmt.Fprintf(buf, `"ts":%d.%06d,`, r.Time.UnixMilli(), r.Time.Nanosecond()%1e6)
	if r.PC != 0 {
		file, number := source(r.PC)
		put("caller", filepath.Base(filepath.Dir(file))+"/"+filepath.Base(file)+":"+strconv.Itoa(number))
	}
	put("msg", r.Message)
	if severityOf(r.Level) == 0 {
		put("v", Show(r.Level))
	} else {
		put("level", map[int]string{1: "warning", 2: "error", 3: "fatal"}[severityOf(r.Level)])
	}
	h.each(r, func(key string, v slog.Value) {
		value := v.Any()
		switch x := value.(type) {
		case error:
			value = x.Error()
		case time.Duration:
			value = x.String()
		case fmt.Stringer:
			value = x.String()
		}
		put(key, value)
	})
	return append(bytes.TrimSuffix(buf.Bytes(), []byte(",")), '}', '\n'), failed
}

// keys is a line of package slog's own text form.
func (h *handler) keys(ctx context.Context, r slog.Record) ([]byte, error) {
	var buf bytes.Buffer
	var in slog.Handler = slog.NewTextHandler(&buf, &slog.HandlerOptions{Level: slog.Level(-1 << 30), ReplaceAttr: nameLevel})
	for _, with := range h.with {
		in = with(in)
	}
	err := in.Handle(ctx, r)
	return buf.Bytes(), err
}

// LevelWrite is the level of the line about each write to the kernel. It is information, from verbosity 2 on.
const LevelWrite = slog.LevelInfo - 1

// nameLevel gives a level the name that every reader of logs knows, where slog would say DEBUG+3 or ERROR+4.
func nameLevel(groups []string, a slog.Attr) slog.Attr {
	level, ok := a.Value.Any().(slog.Level)
	if len(groups) > 0 || a.Key != slog.LevelKey || !ok {
		return a
	}
	switch {
	case level >= slog.LevelError:
		level = slog.LevelError
	case level >= slog.LevelWarn:
		level = slog.LevelWarn
	case level > slog.LevelDebug:
		level = slog.LevelInfo
	default:
		level = slog.LevelDebug
	}
	a.Value = slog.StringValue(level.String())
	return a
}

// each calls f for the attributes of the handler and of the record; those of groups have the names with dots.
func (h *handler) each(r slog.Record, f func(key string, v slog.Value)) {
	var walk func(prefix string, a slog.Attr)
	walk = func(prefix string, a slog.Attr) {
		v := a.Value.Resolve()
		switch {
		case v.Kind() == slog.KindGroup:
			if a.Key != "" {
				prefix += a.Key + "."
			}
			for _, sub := range v.Group() {
				walk(prefix, sub)
			}
		case a.Key != "" || !a.Equal(slog.Attr{}):
			f(prefix+a.Key, v)
		}
	}
	for _, a := range h.attrs {
		walk("", a)
	}
	r.Attrs(func(a slog.Attr) bool { walk(h.prefix, a); return true })
}
