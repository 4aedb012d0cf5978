package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"
)

// Diff compares two configurations field by field, where a mode runs. live are the paths of the fields whose new value
// can take effect in the running process, or has none in that mode; restart those for which the process has to start
// anew, as [Config.WhyRestart] says. Both are in the order of the type.
func Diff(running string, before, after *Config) (live, restart []string) {
	olds, news := leaves(&before.file), leaves(&after.file)
	for i, was := range olds {
		if bytes.Equal(written(was), written(news[i])) {
			continue
		}
		if f, ok := fieldAt(after.modes, was.path); ok && (f.restart == "" || !f.effect.counts(running)) {
			live = append(live, was.path)
		} else {
			restart = append(restart, was.path)
		}
	}
	return live, restart
}

// WhyRestart says why a change of the field needs a new process; "" if it does not.
func (c *Config) WhyRestart(path string) string {
	f, _ := fieldAt(c.modes, path)
	return f.restart
}

func written(l leaf) []byte {
	data, err := json.Marshal(l.value.Interface())
	if err != nil {
		panic(fmt.Sprintf("config: the field %s cannot be written: %v", l.path, err)) // a mistake of the type
	}
	return data
}

// fieldsOf returns the fields of a file by their names.
func fieldsOf(s settings) (root map[string]any, err error) {
	data, err := json.Marshal(s)
	if err == nil {
		err = json.Unmarshal(data, &root)
	}
	if err != nil {
		return nil, fmt.Errorf("write the configuration: %w", err)
	}
	return root, nil
}

// oursBelow is what a file says between the published fields and ours.
const oursBelow = "# Fields that upstream's kube-proxy does not have. It ignores them with a warning.\n"

// YAML returns the configuration as a file that means the same, for --write-config-to (FL-06). It has
// all defaults, and our own fields last. Flags without a field, such as --manifests, are not in it.
func (c *Config) YAML() ([]byte, error) {
	s := c.file
	s.APIVersion, s.Kind = v1alpha1.SchemeGroupVersion.String(), "KubeProxyConfiguration"
	root, err := fieldsOf(s)
	if err != nil {
		return nil, err
	}
	if c.Logging.Format == "" { // upstream reads "" as text, and so do we where the log goes to files
		root["logging"].(map[string]any)["format"] = ""
	}
	own := map[string]any{}
	for _, name := range ours() {
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
