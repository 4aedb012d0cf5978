// Command release makes the files of a release, and checks them.
//
//	make release VERSION=0.1.0 KEY=key.pem URL=https://example.org/0.1.0     # bin/release/0.1.0
//	make verify-release DIR=bin/release/0.1.0 PUBLIC=key.pub
//
// A release has an archive of kube-proxy for each platform that it runs on, one of the kubectl
// plugin for each platform of users, the image, the chart, the manifest for krew, the release
// notes, a bill of materials (SPDX 2.3) and the provenance (in-toto statement with SLSA provenance
// v1). SHA256SUMS has the sums of all of them, and is signed if the caller names a key. Two builds
// of a commit are equal in every byte but the signature of an ECDSA key, so anybody can rebuild and
// compare.
package main

import (
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
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// versions are those that a release may have.
var versions = regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

// run runs in the root of the repository.
func run(ctx context.Context, args []string, out io.Writer) error {
	verifying := len(args) > 0 && args[0] == "verify"
	if verifying {
		args = args[1:]
	}
	flags := flag.NewFlagSet("release [verify]", flag.ContinueOnError)
	version := flags.String("version", "", "the `version`, such as 0.1.0")
	dir := flags.String("o", "", "the `folder` of the files; bin/release/VERSION if empty")
	key := flags.String("key", "", "sign with this private key: a PEM `file`, PKCS #8, Ed25519 or ECDSA")
	public := flags.String("public", "", "verify: the public key, a PEM `file`")
	url := flags.String("url", "", "the https address of the `folder` where the files will be, for krew")
	debian := flags.String("debian", "", "the `address` of Debian's archive for the image")
	security := flags.String("debian-security", "", "the `address` of Debian's security archive for the image")
	if err := flags.Parse(args); err != nil {
		return err
	}
	want := plan{version: *version, url: *url, platforms: platforms,
		image: []string{"-debian", *debian, "-debian-security", *security}}
	if verifying {
		return verify(ctx, want, *dir, *public, out)
	}
	if !versions.MatchString(*version) {
		return fmt.Errorf("-version %q: want a semantic version, such as 0.1.0", *version)
	}
	if *url != "" && !strings.HasPrefix(*url, "https://") {
		return fmt.Errorf("-url %q: want the https address of the folder where the files will be", *url)
	}
	if changes, err := git(ctx, "status", "--porcelain"); err != nil || changes != "" {
		err = errors.Join(err, modified(changes))
		return fmt.Errorf("commit first, so that others can rebuild the release: %w", err)
	}
	if *dir == "" {
		*dir = filepath.Join("bin", "release", *version)
	}
	if err := build(ctx, want, *dir); err != nil {
		return err
	}
	signed := "not signed: name a key with KEY=FILE"
	if *key != "" {
		if err := sign(*dir, *key); err != nil {
			return err
		}
		signed = "signed: " + sumsFile + ".sig"
	}
	_, err := fmt.Fprintf(out, "%s\n%s\n", *dir, signed)
	return err
}

func modified(changes string) error {
	if changes == "" {
		return nil
	}
	return errors.New("modified: " + strings.Join(strings.Fields(changes), " "))
}

// git returns the output of a git command, without the last line break.
func git(ctx context.Context, args ...string) (string, error) {
	said, err := exec.CommandContext(ctx, "git", args...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(said)), nil
}
