package config

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"kube-proxy/plane/all"
)

// readableByUpstream checks that the published type has all fields above ours, and that ours alone
// are below the comment.
func readableByUpstream(t testing.TB, data []byte, ours []string) {
	t.Helper()
	published, own, ok := bytes.Cut(data, []byte(oursBelow))
	var file v1alpha1.KubeProxyConfiguration
	if err := yaml.UnmarshalStrict(published, &file); !ok || err != nil {
		t.Errorf("upstream's kube-proxy cannot read what was written: %v\n%s", err, data)
	}
	var root map[string]any
	if err := yaml.Unmarshal(own, &root); err != nil || !slices.Equal(slices.Sorted(maps.Keys(root)),
		slices.Sorted(slices.Values(ours))) {
		t.Errorf("our own fields are %s, want %q, %v", own, ours, err)
	}
}

// roundTrip checks FL-06: the written file loads to the same configuration, without an error of
// strict decoding.
func roundTrip(t testing.TB, c *Config, windows bool) {
	t.Helper()
	data, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	readableByUpstream(t, data, c.file.ours())
	name := filepath.Join(t.TempDir(), "written.yaml")
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	o := NewOptions(all.Modes())
	o.readFile = idFiles
	if windows {
		o.system, o.modes = "windows", windowsModes()
	}
	o.hostname, o.getenv = func() (string, error) { return c.NodeName, nil }, func(string) string { return "" }
	fs := pflag.NewFlagSet("kube-proxy", pflag.ContinueOnError)
	o.AddFlags(fs)
	if err := fs.Parse([]string{"--config=" + name}); err != nil {
		t.Fatal(err)
	}
	again, err := o.Complete(nil)
	if err != nil {
		t.Fatalf("load what was written: %v\n%s", err, data)
	}
	if live, restart := Diff(c.Mode, c, again); len(live)+len(restart) > 0 {
		t.Errorf("what was written loads differently: %q %q\n%s", live, restart, data)
	}
	// Flags without a field are not in the file.
	want, got := *c, *again
	for _, x := range []*Config{&want, &got} {
		x.modes, x.table, x.unchecked, x.inMode, x.names = nil, nil, nil, nil, nil
		x.Version, x.MachineID, x.BootID = "", "", ""
		x.API.Master, x.Manifests, x.File, x.WriteConfigTo, x.Flags, x.Warnings, x.Cleanup, x.InitOnly = "", "", "", "",
			nil, nil, nil, false
		v, format := x.Logging.Verbosity, x.Logging.Format
		x.Logging, x.file = Logging{Format: format, Verbosity: v, VModule: x.Logging.VModule,
			FlushFrequency: x.Logging.FlushFrequency}, nil
		if len(x.NodePorts.Prefixes) == 0 {
			x.NodePorts.Prefixes = nil
		}
	}
	want.API.Kubeconfig = got.API.Kubeconfig // --manifests empties it
	if !reflect.DeepEqual(want, got) {
		t.Errorf("what was written means\n%+v\nwant\n%+v\n%s", got, want, data)
	}
}
