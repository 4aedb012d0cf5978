package logging

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// severityNames name the files; the last is of what ends the process.
var severityNames = [...]string{"INFO", "WARNING", "ERROR", "FATAL"}

// dirMaxBytes is the size at which a file in Dir is followed by a new one: 1800 MB, as it always was.
const dirMaxBytes = 1800 << 20

// output writes lines to where they belong. Its caller holds the lock.
type output struct {
	cfg    *Config
	stdout *bufio.Writer // of a split stream; nil if lines go out at once
	single *file
	files  [len(severityNames)]*file
}

func newOutput(cfg *Config) output {
	o := output{cfg: cfg}
	if cfg.SplitStream && cfg.InfoBufferSize > 0 {
		o.stdout = bufio.NewWriterSize(cfg.Stdout, int(min(cfg.InfoBufferSize, 64<<20)))
	}
	return o
}

func (o *output) toFiles() bool { return !o.cfg.ToStderr && (o.cfg.File != "" || o.cfg.Dir != "") }

func (o *output) buffers() bool { return o.stdout != nil || o.toFiles() }

// open makes the files that every process writes to, so that a bad folder is known at the start.
func (o *output) open() error {
	if !o.toFiles() {
		return nil
	}
	if o.cfg.File != "" {
		limit := int64(o.cfg.FileMaxMB) << 20
		o.single = &file{out: o, name: o.cfg.File, limit: limit, severity: severityNames[0]}
		return o.single.open(os.O_APPEND)
	}
	o.files[0] = o.inDir(0)
	return o.files[0].open(os.O_TRUNC)
}

func (o *output) inDir(severity int) *file {
	return &file{out: o, dir: o.cfg.Dir, limit: dirMaxBytes, severity: severityNames[severity]}
}

func (o *output) write(severity int, line []byte) error {
	c := o.cfg
	switch {
	case c.SplitStream && severity >= 2:
		if o.stdout != nil { // in order of time on a terminal
			if err := usable(o.stdout, c.Stdout, o.stdout.Flush()); err != nil {
				return fmt.Errorf("write the log: %w", err)
			}
		}
		_, err := c.Stderr.Write(line)
		return err
	case c.SplitStream && o.stdout != nil:
		_, err := o.stdout.Write(line)
		return usable(o.stdout, c.Stdout, err)
	case c.SplitStream:
		_, err := c.Stdout.Write(line)
		return err
	case !o.toFiles():
		_, err := c.Stderr.Write(line)
		return err
	}
	var errs []error
	if c.AlsoToStderr || severity >= c.StderrThreshold {
		_, err := c.Stderr.Write(line)
		errs = append(errs, err)
	}
	if o.single != nil {
		return errors.Join(append(errs, o.single.write(line))...)
	}
	for s := severity; s >= 0; s-- {
		if o.files[s] == nil {
			o.files[s] = o.inDir(s)
		}
		errs = append(errs, o.files[s].write(line))
		if c.OneOutput {
			break
		}
	}
	return errors.Join(errs...)
}

func (o *output) all() []*file {
	var all []*file
	for _, f := range append([]*file{o.single}, o.files[:]...) {
		if f != nil && f.w != nil {
			all = append(all, f)
		}
	}
	return all
}

func (o *output) flush() error {
	var errs []error
	if o.stdout != nil {
		errs = append(errs, usable(o.stdout, o.cfg.Stdout, o.stdout.Flush()))
	}
	for _, f := range o.all() {
		errs = append(errs, usable(f.w, f.f, f.w.Flush()))
	}
	return errors.Join(errs...)
}

// usable returns the error of a write to w, after which w would take nothing for ever; a disk that is full need not stay
// so. What waits in w is lost.
func usable(w *bufio.Writer, to io.Writer, err error) error {
	if err != nil {
		w.Reset(to)
	}
	return err
}

func (o *output) close() error {
	errs := []error{o.flush()}
	for _, f := range o.all() {
		errs = append(errs, f.f.Close())
		f.w = nil
	}
	return errors.Join(errs...)
}

// file is one log file: either of a fixed name, which is emptied when it is full, or one of a folder, which is then
// followed by another.
type file struct {
	out       *output
	name, dir string
	severity  string
	limit     int64 // 0 is none
	size      int64
	f         *os.File
	w         *bufio.Writer
}

func (f *file) write(line []byte) error {
	if f.w == nil || f.limit > 0 && f.size+int64(len(line)) > f.limit {
		if err := f.open(os.O_TRUNC); err != nil {
			return err
		}
	}
	f.size += int64(len(line))
	if _, err := f.w.Write(line); err != nil {
		return fmt.Errorf("write the log: %w", usable(f.w, f.f, err))
	}
	return nil
}

// open begins a file, closing the one before. mode is O_APPEND or O_TRUNC.
func (f *file) open(mode int) error {
	if f.w != nil {
		err := errors.Join(f.w.Flush(), f.f.Close())
		f.w = nil // whatever became of it, the next line is for another
		if err != nil {
			return fmt.Errorf("close a log file: %w", err)
		}
	}
	now := time.Now()
	var opened *os.File
	var err error
	if f.dir != "" {
		opened, err = f.create(now)
	} else {
		opened, err = openFile(f.name, mode)
	}
	if err != nil {
		return fmt.Errorf("begin a log file: %w", err)
	}
	f.f, f.w, f.size = opened, bufio.NewWriterSize(opened, 64<<10), 0
	if info, err := opened.Stat(); err == nil {
		f.size = info.Size()
	}
	if f.out.cfg.SkipLogHeaders {
		return nil
	}
	n, err := fmt.Fprintf(f.w, "Log file created at: %s\nRunning on machine: %s\nBinary: Built with %s for %s/%s\n"+
		"Log line format: [IWEF]mmdd hh:mm:ss.uuuuuu threadid file:line] msg\n",
		now.Format("2006/01/02 15:04:05"), host(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	f.size += int64(n)
	return err
}

// mostNames is how many names of a new file are tried.
const mostNames = 10

// create makes the next file of the folder, and the link to it. The folder may be one where others write too, such as
// /tmp, and may have foreseen the name: what is there already, a symbolic link included, is left alone, and a later name
// tried.
func (f *file) create(at time.Time) (opened *os.File, err error) {
	for range mostNames {
		name, link := names(f.out.cfg.Program, f.severity, at)
		opened, err = os.OpenFile(filepath.Join(f.dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY|noFollow, 0o644)
		if errors.Is(err, fs.ErrExist) {
			at = at.Add(time.Microsecond)
			continue
		}
		if err == nil { // the link points to the newest; a convenience that may fail. Neither call follows one.
			_ = os.Remove(filepath.Join(f.dir, link))
			_ = os.Symlink(name, filepath.Join(f.dir, link))
		}
		return opened, err
	}
	return nil, err
}

// names returns the name of a log file and of the link that points to it.
func names(program, severity string, at time.Time) (name, link string) {
	who := "unknown"
	if u, err := user.Current(); err == nil {
		who = strings.ReplaceAll(u.Username, `\`, "_")
	}
	return fmt.Sprintf("%s.%s.%s.log.%s.%s.%d", program, host(), who, severity, at.Format("20060102-150405.000000"), os.Getpid()),
		program + "." + severity
}

// host is the machine's name up to the first dot.
func host() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknownhost"
	}
	name, _, _ = strings.Cut(name, ".")
	return name
}
