package config

import (
	"bytes"
	"fmt"
	"slices"

	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"
)

// Diff compares two configurations field by field for the running mode. live are the paths of the
// fields whose new value can take effect in the running process, or has no effect in that mode;
// restart those that need a new process, see [Config.WhyRestart]. Both are in the order of the
// type.
func Diff(running string, before, after *Config) (live, restart []string) {
	olds, news := before.file.leaves(), after.file.leaves()
	for i, was := range olds {
		if bytes.Equal(written(was), written(news[i])) {
			continue
		}
		if f, ok := after.table.field(was.Path); ok && (f.Restart == "" || !f.counts(running)) {
			live = append(live, was.Path)
		} else {
			restart = append(restart, was.Path)
		}
	}
	return live, restart
}

// WhyRestart returns the reason why a change of the field needs a new process; "" if it does not.
func (c *Config) WhyRestart(path string) string {
	f, _ := c.table.field(path)
	return f.Restart
}

// oursBelow is the comment in a file between the published fields and those of this proxy.
const oursBelow = "# Fields that upstream's kube-proxy does not have. It ignores them with a warning.\n"

// YAML returns the configuration as an equivalent file, for --write-config-to (FL-06). It has all
// defaults, and our own fields last. Flags without a field, such as --manifests, are not in it.
func (c *Config) YAML() ([]byte, error) {
	root, err := c.file.root()
	if err != nil {
		return nil, err
	}
	root["apiVersion"], root["kind"] = v1alpha1.SchemeGroupVersion.String(), "KubeProxyConfiguration"
	if c.Logging.Format == "" { // upstream reads "" as text, and so does this proxy if the log goes to files
		root["logging"].(map[string]any)["format"] = ""
	}
	own := map[string]any{}
	for _, name := range c.file.ours() {
		own[name] = root[name]
		delete(root, name)
	}
	data, err := yaml.Marshal(root)
	if err != nil {
		return nil, fmt.Errorf("write the configuration: %w", err)
	}
	more, err := yaml.Marshal(own)
	if err != nil {
		return nil, fmt.Errorf("write the configuration: %w", err)
	}
	return slices.Concat(data, []byte(oursBelow), more), nil
}
