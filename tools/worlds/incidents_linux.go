package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"kube-proxy/internal/netlab"
)

// firstLines returns the first n lines.
func firstLines(text string, n int) string {
	lines := strings.SplitAfterN(text, "\n", n+1)
	return strings.Join(lines[:min(n, len(lines))], "")
}

// said is the answer of a command.
type said struct {
	text string
	exit int
	took time.Duration
}

// playIncidents plays each incident in each mode, and prints what the commands say.
func playIncidents(ctx context.Context, out io.Writer, o options) error {
	bad, slow, n := 0, 0, 0
	var report strings.Builder // of one incident
	for _, mode := range o.modes {
		for _, i := range incidents() {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if slices.Contains(i.not, mode) {
				fmt.Fprintf(out, "%-10s %s: does not happen in this mode\n", mode, i.name)
				continue
			}
			w := &world{mode: mode, bridge: i.bridge, flat: i.flat, flags: i.flags, services: []service{i.service}}
			if i.flags == nil {
				w.flags = []string{"--cluster-cidr=10.1.0.0/16,fd00:10:1::/48"}
			}
			answers, seen, err := i.play(w, o)
			if err != nil {
				return fmt.Errorf("%s, mode %s: %w", i.name, mode, err)
			}
			n++
			fmt.Fprintf(out, "%-10s %s\n", mode, i.name)
			failed := len(answered(seen)) < len(seen)
			if i.fails != failed {
				bad++
				fmt.Fprintf(out, "  the incident did not happen: %s\n", strings.Join(compact(seen), "; "))
			}
			report.Reset()
			for _, command := range commands {
				a := answers[command]
				missing := i.missing(command, a.text)
				result := "ok"
				switch {
				case missing != "":
					bad++
					result = "BAD, " + missing
				case i.says[command] == "":
					result = "-"
				}
				if a.took > longest {
					slow++
					result += ", SLOW"
				}
				fmt.Fprintf(out, "  %-7s exit code %d, %6s  %s\n", command, a.exit,
					a.took.Round(time.Millisecond), result)
				if missing != "" || a.took > longest {
					fmt.Fprintf(&report, "mode %s, %s\n%s: %s, exit code %d, %s\n%s\n", mode, i.name, command,
						result, a.exit,
						a.took.Round(time.Millisecond), a.text)
				}
				if missing != "" || o.verbose {
					text := firstLines(a.text, topLines)
					fmt.Fprintf(out, "      %s\n", strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n      "))
				}
			}
			err = i.record(o.findings, mode, report.String())
			if err != nil {
				return err
			}
		}
	}
	fmt.Fprintf(out, "\n%d incidents: %d answers do not name the cause, %d took more than %s\n", n, bad, slow,
		longest)
	if bad+slow > 0 {
		return fmt.Errorf("%d answers are bad, %d slow", bad, slow)
	}
	return nil
}

// play makes the incident happen, connects, and asks all commands.
func (i incident) play(w *world, o options) (answers map[string]said, seen []outcome, err error) {
	p, err := begin(w, o.program)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, p.end()) }()
	if i.first {
		p.connections(i.query(), 1, patient)
	}
	err = i.happen(p)
	if err != nil {
		return nil, nil, err
	}
	time.Sleep(100 * time.Millisecond)
	answers = map[string]said{}
	for _, command := range commands {
		if command == "events" { // last but one, so that it has something to say
			seen = p.connections(i.query(), 8, patient)
		}
		answers[command] = p.command(i.args(command)...)
	}
	return answers, seen, nil
}

// happen does what the incident consists of.
func (i incident) happen(p *play) error {
	var port uint16
	_, err := fmt.Sscanf(i.do, "listen %d", &port)
	switch {
	case i.stopped:
		err = p.proxy.Process.Kill()
		_ = p.proxy.Wait() // it was killed
		p.proxy = nil
		return err
	case i.late != nil:
		p.services = []service{*i.late}
		return p.manifests()
	case err == nil:
		_, err = p.lab.Listen(i.host, netlab.TCP, port)
		return err
	case i.do != "":
		return p.shell(i.host, i.do)
	}
	return nil
}

// args are the command's arguments.
func (i incident) args(command string) []string {
	name := "lab/" + i.service.name
	if i.absent {
		name = "lab/absent"
	}
	switch command {
	case "status":
		return []string{command}
	case "check":
		return []string{command, "--problems"}
	case "trace":
		return append([]string{command}, i.query().args()...)
	}
	return []string{command, name}
}

// command runs one on the node.
func (p *play) command(args ...string) said {
	begin := time.Now()
	cmd := p.lab.Command("node1", p.program, append(args, "--admin-socket="+p.socket())...)
	cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+filepath.Join(p.dir, "xtables.lock"))
	text, err := cmd.CombinedOutput()
	return said{string(text), exitCode(err), time.Since(begin)}
}

// record writes the bad answers of an incident to a file in the folder, or removes the file without
// any.
func (i incident) record(folder, mode, text string) error {
	if folder == "" {
		return nil
	}
	letter, _, _ := strings.Cut(i.name, ":")
	file := filepath.Join(folder, "answers-"+letter+"-"+mode+".txt")
	err := os.Remove(file)
	if text != "" {
		err = os.WriteFile(file, []byte(text), 0o644)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("record the answers: %w", err)
	}
	return nil
}
