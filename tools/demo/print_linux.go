package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// printer writes for a person, in colour if standard output is a terminal and NO_COLOR is not set.
type printer struct {
	w     *os.File
	color bool
	open  bool // the last line has no end yet
}

func newPrinter(w *os.File) *printer {
	_, err := unix.IoctlGetTermios(int(w.Fd()), unix.TCGETS)
	return &printer{w: w, color: err == nil && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

// printf writes; SIGPIPE reports a closed output.
func (p *printer) printf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	p.open = !strings.HasSuffix(text, "\n")
	fmt.Fprint(p.w, text)
}

// endLine ends the line of a step that will not be done.
func (p *printer) endLine() {
	if p.open {
		p.printf("\n")
	}
}

func (p *printer) lines(lines []string) { p.printf("%s\n", strings.Join(lines, "\n")) }

// step is a task that takes time; its line is printed at the start.
type step struct {
	p     *printer
	begin time.Time
}

func (p *printer) step(name, format string, args ...any) *step {
	p.printf("%-11s %s ...", name, fmt.Sprintf(format, args...))
	return &step{p, time.Now()}
}

func (s *step) done() { s.p.printf(" %s\n", took(time.Since(s.begin))) }

// took writes a duration with as many digits as a person reads.
func took(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d >= 100*time.Millisecond:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%.0f ms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.1f ms", float64(d)/1e6)
}
