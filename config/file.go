package config

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"
)

// decode reads a KubeProxyConfiguration of v1alpha1, YAML or JSON. A field that is unknown or stands there
// twice is worth a warning only (CF-60). Another warning names the fields that have no effect here, so
// that nothing is promised in silence (G7).
func decode(data []byte) (*v1alpha1.KubeProxyConfiguration, []string, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, nil, fmt.Errorf("register KubeProxyConfiguration: %w", err)
	}
	strict := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	lenient := serializer.NewCodecFactory(scheme)

	var warnings []string
	obj, _, err := strict.UniversalDeserializer().Decode(data, nil, nil)
	if runtime.IsStrictDecodingError(err) {
		warnings = append(warnings, "Using lenient decoding as strict decoding failed: "+strings.Join(strings.Fields(err.Error()), " "))
		obj, _, err = lenient.UniversalDeserializer().Decode(data, nil, nil)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("failed to decode: %w", explain(data, err))
	}
	file, ok := obj.(*v1alpha1.KubeProxyConfiguration)
	if !ok {
		return nil, nil, fmt.Errorf("got unexpected config type: %T", obj)
	}
	if idle := withoutEffect(data); len(idle) > 0 {
		warnings = append(warnings, "these fields of the file have no effect yet: "+strings.Join(idle, ", "))
	}
	return file, warnings, nil
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

// withoutEffect returns the paths of the fields in data that are set to more than their zero value, and
// that nothing here reads.
func withoutEffect(data []byte) []string {
	var root map[string]any
	if err := yaml.Unmarshal(data, &root); err != nil {
		return nil // decode has said what is wrong
	}
	used := []string{"apiVersion", "kind"}
	for _, f := range flags(new(Options)) {
		used = append(used, f.field)
	}
	var idle []string
	var walk func(prefix string, m map[string]any)
	walk = func(prefix string, m map[string]any) {
		for name, v := range m {
			at := prefix + name
			if sub, ok := v.(map[string]any); ok {
				walk(at+".", sub)
				continue
			}
			if !isZero(v) && !slices.Contains(used, at) {
				idle = append(idle, at)
			}
		}
	}
	walk("", root)
	slices.Sort(idle)
	return idle
}

// isZero reports whether a value of a YAML file says nothing: kubeadm writes every field.
func isZero(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case []any:
		return len(v) == 0
	case string:
		return v == "" || v == "0" || v == "0s"
	}
	return reflect.ValueOf(v).IsZero()
}
