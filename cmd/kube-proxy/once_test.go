//go:build linux

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kube-proxy/config"
)

// FL-02, FL-06: calls that end without serving, with their errors.
func TestCommand(t *testing.T) {
	dir := t.TempDir()
	written, link := filepath.Join(dir, "written.yaml"), filepath.Join(dir, "link.yaml")
	do(t, os.Symlink(written, link))
	for _, tc := range []struct {
		args      string
		out, fail string // prefix of stdout, and of the error
	}{
		{"--version", "Kubernetes " + config.Compatible + "\n", ""},
		{"--version=raw", "{\n  \"go\": \"go", ""},
		{"--version=v1.2.3 --write-config-to=" + written, "", ""},
		{"--help", "Usage: kube-proxy [flags]\n", ""},
		{"--write-config-to=" + written + " --kube_api_qps=7", "", ""},
		{"--write-config-to=" + dir, "", "--write-config-to: "},
		{"--write-config-to=" + link, "", "--write-config-to: " + link + " is a symbolic link: name the file itself"},
		{"--proxy-mode=magic -v=x", "", "--v: \"x\": want "},
		{"--config=" + dir + "/none", "", "read --config: "},
		{"--config=" + dir, "", "read --config: "},
		{"--proxy-mode=nftables --logtostderr=false --log-dir=" + dir + "/none", "", "initialize logging: --log-dir: "},
	} {
		var out, errOut bytes.Buffer
		err := command(&out, &errOut, strings.Fields(tc.args)).ExecuteContext(t.Context())
		switch {
		case (err != nil) != (tc.fail != ""), err != nil && !strings.HasPrefix(err.Error(), tc.fail):
			t.Errorf("%s: error %v, want %q", tc.args, err, tc.fail)
		case !strings.HasPrefix(out.String(), tc.out), tc.out == "" && out.Len() > 0:
			t.Errorf("%s: stdout %.80q, want %q", tc.args, out.String(), tc.out)
		}
	}
	data, err := os.ReadFile(written)
	if err != nil || !strings.Contains(string(data), "\n  qps: 7\n") {
		t.Errorf("--write-config-to wrote %q, %v", data, err)
	}
}

// G1, CF-60: ignored settings are reported where the process ends without serving, too: a user who
// converts an old file to a current one sees what was lost.
func TestCommandWarns(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "old.yaml")
	write(t, old, nftablesFile("resourceContainer: /x\nmetricsPort: 1\n"))
	for args, want := range map[string][]string{
		"--write-config-to=" + dir + "/1 --config=" + old +
			" --profiling": {"Using lenient decoding as strict decoding failed",
			`unknown field \"metricsPort\"`, "resourceContainer has no effect",
			"ignored because --config is given: --profiling"},
		"--write-config-to=" + dir +
			"/2 --healthz-port=1": {"--healthz-port and --metrics-port are ignored because --write-config-to is given"},
		"--write-config-to=" + dir + "/3": nil,
	} {
		code, _, errOut := inProcess(t, strings.Fields(args)...)
		has(t, args, errOut, want...)
		if code != 0 || len(want) == 0 && errOut != "" {
			t.Errorf("%s: exit code %d: %s", args, code, errOut)
		}
	}
}
