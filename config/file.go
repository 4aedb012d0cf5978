package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"
)

// document is what a file says.
type document struct {
	settings
	// given are the paths of the fields that it sets to more than nothing.
	given    []string
	warnings []string
	// problems are of fields that hold something of the wrong type; settings does not have them.
	problems Problems
}

// decode reads a KubeProxyConfiguration of v1alpha1, YAML or JSON. A field that is unknown or stands there twice is
// worth a warning only (CF-60). What older versions called otherwise is read as what it became (CF-47).
func decode(data []byte) (*document, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register KubeProxyConfiguration: %w", err)
	}
	strict := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	lenient := serializer.NewCodecFactory(scheme)

	obj, _, err := strict.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		root := map[string]any{}
		if !utf8.Valid(data) {
			return nil, fmt.Errorf("failed to decode: %w", explain(data, err))
		}
		var d document
		if err := withoutOurs(err); runtime.IsStrictDecodingError(err) {
			d.warnings = append(d.warnings, "Using lenient decoding as strict decoding failed: "+strings.Join(strings.Fields(err.Error()), " "))
		}
		if yaml.Unmarshal(data, &root) == nil {
			d.warnings = modernize(root, d.warnings)
			d.problems = misfits(root)
			if newer, bad := json.Marshal(root); bad == nil {
				obj, _, err = lenient.UniversalDeserializer().Decode(newer, nil, nil)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("failed to decode: %w", explain(data, err))
		}
		return d.finish(obj, root)
	}
	var root map[string]any
	if err := yaml.Unmarshal(data, &root); err != nil {
		return nil, fmt.Errorf("failed to decode: %w", err)
	}
	return new(document).finish(obj, root)
}

// finish fills d with what was decoded from root.
func (d *document) finish(obj runtime.Object, root map[string]any) (*document, error) {
	file, ok := obj.(*v1alpha1.KubeProxyConfiguration)
	if !ok {
		return nil, fmt.Errorf("got unexpected config type: %T", obj)
	}
	d.KubeProxyConfiguration, d.given = *file, given(root)
	if list, ok := root["externalIPCIDRs"].([]any); ok {
		for _, v := range list {
			d.ExternalIPCIDRs = append(d.ExternalIPCIDRs, fmt.Sprint(v)) // misfits has found it to be text
		}
	}
	if on, ok := root["userspaceFallback"].(bool); ok {
		d.UserspaceFallback = &on
	}
	if on, ok := root["windowsIgnoreSourceRanges"].(bool); ok {
		d.WindowsIgnoreSourceRanges = on
	}
	if path, ok := root["adminSocket"].(string); ok {
		d.AdminSocket = &path
	}
	if n, ok := whole(root["serviceMetrics"]); ok {
		d.ServiceMetrics = n
	}
	if n, ok := whole(root["maxNamespaceObjects"]); ok {
		d.MaxNamespaceObjects = &n
	}
	if block, ok := root["userspace"]; ok {
		data, err := json.Marshal(block)
		if err == nil {
			err = json.Unmarshal(data, &d.Userspace)
		}
		if err != nil { // misfits has taken out what is none
			return nil, fmt.Errorf("failed to decode: userspace: %w", err)
		}
	}
	if text, ok := root["udpIdleTimeout"].(string); ok { // today's type does not have it
		idle, err := time.ParseDuration(text)
		if err != nil {
			return nil, fmt.Errorf("failed to decode: udpIdleTimeout: %w", err)
		}
		d.UDPIdleTimeout.Duration = idle
	}
	return d, nil
}

// whole returns a number of the file, which misfits has found to be a whole one.
func whole(v any) (n int32, ok bool) {
	switch v := v.(type) {
	case int64:
		return int32(v), true
	case float64:
		return int32(v), true
	}
	return 0, false
}

// ours are the top-level fields that the published type does not have and [settings] has.
func ours() []string {
	var names []string
	for f := range reflect.TypeFor[settings]().Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); !f.Anonymous {
			names = append(names, name)
		}
	}
	return names
}

// withoutOurs returns the error of a strict decoding without what it says of fields that are ours; nil if it says nothing else.
func withoutOurs(err error) error {
	strict, ok := runtime.AsStrictDecodingError(err)
	if !ok {
		return err
	}
	others := slices.DeleteFunc(slices.Clone(strict.Errors()), func(err error) bool {
		return slices.ContainsFunc(ours(), func(name string) bool { return err.Error() == fmt.Sprintf("unknown field %q", name) })
	})
	if len(others) == 0 {
		return nil
	}
	return runtime.NewStrictDecodingError(others)
}

// explain says in the user's words why data could not be decoded.
func explain(data []byte, err error) error {
	want := fmt.Sprintf("want apiVersion: %s and kind: KubeProxyConfiguration", v1alpha1.SchemeGroupVersion)
	var root any
	switch {
	case len(bytes.TrimSpace(data)) == 0:
		return errors.New("it is empty: " + want)
	case yaml.Unmarshal(data, &root) != nil: // the error is about YAML, and has the line
		return err
	}
	fields, ok := root.(map[string]any)
	switch {
	case !ok:
		return errors.New("it is not a mapping of fields to values: " + want)
	case runtime.IsMissingKind(err), runtime.IsMissingVersion(err), runtime.IsNotRegisteredError(err):
		return fmt.Errorf("its apiVersion is %s and its kind %s: %s", quote(fields["apiVersion"]), quote(fields["kind"]), want)
	}
	return err
}

func quote(field any) string {
	if field == nil {
		return "missing"
	}
	return strconv.Quote(fmt.Sprint(field))
}

// given returns the paths in root that are set to more than their zero value.
func given(root map[string]any) []string {
	var all []string
	var walk func(prefix string, m map[string]any)
	walk = func(prefix string, m map[string]any) {
		for name, v := range m {
			at := prefix + name
			if sub, ok := v.(map[string]any); ok && at != "featureGates" {
				walk(at+".", sub)
			} else if !isZero(v) {
				all = append(all, at)
			}
		}
	}
	walk("", root)
	slices.Sort(all)
	return all
}

// isZero reports whether a value of a YAML file says nothing: kubeadm writes every field.
func isZero(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	case string:
		return v == "" || v == "0" || v == "0s"
	}
	return reflect.ValueOf(v).IsZero()
}
