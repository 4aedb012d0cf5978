package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// options are those of the command line.
type options struct {
	out     string // the archive; the bill of materials is beside it
	name    string // of the image, without a tag
	tag     string // the version too
	archive archive
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	o := options{archive: archive{mirrors: map[string]string{}}}
	flags := flag.NewFlagSet("image [lock]", flag.ContinueOnError)
	flags.StringVar(&o.out, "o", "bin/kube-proxy-image.tar", "the archive to write")
	flags.StringVar(&o.name, "name", "localhost/kube-proxy", "the `name` of the image, such as "+
		"registry.example/kube-proxy")
	flags.StringVar(&o.tag, "tag", "", "its `tag`; the commit if empty")
	flags.StringVar(&o.archive.cache, "cache", "", "the `folder` that keeps packages of Debian")
	debian := flags.String("debian", "", "the `address` of Debian's archive, such as a snapshot of it; this "+
		"machine's apt sources if empty")
	security := flags.String("debian-security", "", "the `address` of Debian's security archive")
	lockOnly := len(args) > 0 && args[0] == "lock"
	if lockOnly {
		args = args[1:]
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("argument %q is not known: run `image -h`", flags.Arg(0))
	}
	o.archive.mirrors["debian"], o.archive.mirrors["debian-security"] = *debian, *security
	if _, err := os.Stat(lockFile); err != nil && !lockOnly {
		return fmt.Errorf("%w: run this in the root of the repository", err)
	}
	if lockOnly {
		return writeLock(ctx, o.archive, stdout)
	}
	return build(ctx, o, stdout)
}

func writeLock(ctx context.Context, a archive, stdout io.Writer) error {
	l, err := a.resolve(ctx, time.Now())
	if err != nil {
		return err
	}
	before, _ := os.ReadFile(lockFile)
	if have, err := parseLock(before); err == nil && have.Suite == l.Suite && slices.Equal(have.pins, l.pins) {
		fmt.Fprintln(stdout, lockFile, "is current")
		return nil
	}
	text, err := l.text()
	if err == nil {
		err = os.WriteFile(lockFile, text, 0o644)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "wrote %s: %d packages of %s; read the difference, run make test-image, commit\n", lockFile,
		len(l.pins), l.Suite)
	return nil
}

var (
	// imageName and imageTag are the patterns of the distribution specification, and a registry
	// with a port.
	imageName = regexp.MustCompile(
		`^[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+$|^[a-z0-9]+([._-]+[a-z0-9]+)*$`)
	imageTag = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,110}$`)
)

// minimal is the suffix of the tag with only the binary.
const minimal = "-minimal"

func build(ctx context.Context, o options, stdout io.Writer) error {
	began := time.Now()
	text, err := os.ReadFile(lockFile)
	if err != nil {
		return err
	}
	l, err := parseLock(text)
	if err != nil {
		return err
	}
	commit := git(ctx, "rev-parse", "HEAD")
	if o.tag == "" {
		o.tag = cmp.Or(git(ctx, "describe", "--always", "--dirty", "--abbrev=12"), "unknown") // of a tree without git
	}
	when, err := sourceDate(os.Getenv("SOURCE_DATE_EPOCH"), git(ctx, "log", "-1", "--format=%ct"))
	switch {
	case err != nil:
		return err
	case !imageName.MatchString(o.name):
		return fmt.Errorf(
			"name %q: want one such as kube-proxy or registry.example:5000/team/kube-proxy, without a tag", o.name)
	case !imageTag.MatchString(o.tag):
		return fmt.Errorf("tag %q: want letters, digits, dots, dashes and underscores, at most 111", o.tag)
	}
	if fi, err := os.Stat(o.out); err == nil && fi.IsDir() {
		return fmt.Errorf("write %s: it is a folder: remove it, or name a file with -o", o.out)
	}
	if err := os.MkdirAll(filepath.Dir(o.out), 0o755); err != nil {
		return err
	}
	if o.archive.cache == "" {
		dir := "/var/cache" // which machines of CI keep
		if os.Geteuid() != 0 {
			dir, err = os.UserCacheDir()
			if err != nil {
				return fmt.Errorf("find a folder for packages of Debian: %w: name one with -cache", err)
			}
		}
		o.archive.cache = filepath.Join(dir, "kube-proxy-image")
	}
	contents, err := makeContents(ctx, o, l, when)
	if err != nil {
		return err
	}
	made, err := assemble(o, commit, when, contents)
	if err != nil {
		return err
	}
	if err := made.save(o.out, when); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s in %s, with its bill of materials %s\n", o.out,
		time.Since(began).Round(100*time.Millisecond), billFile(o.out))
	for _, line := range made.reported {
		fmt.Fprintln(stdout, line)
	}
	return nil
}

// sourceDate is the time that all files of ours carry: SOURCE_DATE_EPOCH if it is set, else the
// commit's, in seconds since 1970.
func sourceDate(epoch, commit string) (time.Time, error) {
	text := epoch
	if text == "" {
		text = commit
	}
	if text == "" {
		return time.Time{}, errors.New("no time for the files of the image: git does not know that of the commit: " +
			"set SOURCE_DATE_EPOCH")
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seconds < 0 {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH is %q: want seconds since 1970", text)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// git returns the output of git, or "" on failure.
func git(ctx context.Context, args ...string) string {
	out, err := exec.CommandContext(ctx, "git", args...).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
