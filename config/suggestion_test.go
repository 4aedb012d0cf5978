package config

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestUnknownFlagSuggestion (FL-02): an unknown flag is reported once, with the flag of the nearest
// name, if any is near.
func TestUnknownFlagSuggestion(t *testing.T) {
	args := []string{"--proxi-mode=nftables", "--cluster-cdr", "10.0.0.0/8", "--zzzzz"}
	err := Unparsed(args, pflag.NewFlagSet("", pflag.ContinueOnError).Parse(args), nil)
	want := []string{"unknown flag: --proxi-mode: did you mean --proxy-mode?",
		"unknown flag: --cluster-cdr: did you mean --cluster-cidr?", "unknown flag: --zzzzz"}
	if got := strings.Split(err.Error(), "\n"); strings.Join(got[:min(len(got), 3)], "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%v\nwant\n%s", err, strings.Join(want, "\n"))
	}
}
