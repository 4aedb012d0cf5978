package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"
)

// document is the decoded content of a file.
type document struct {
	root     map[string]any // of today's layout
	warnings []string
}

// decode reads a KubeProxyConfiguration of v1alpha1, YAML or JSON. An unknown or repeated field
// only causes a warning (CF-60). Old names of fields are read as the current ones (CF-47). ours are
// the fields that the published type does not have.
func decode(data []byte, ours []string) (*document, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register KubeProxyConfiguration: %w", err)
	}
	_, _, err := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer().Decode(data, nil,
		nil)
	d := document{root: map[string]any{}}
	if n := documents(data); n > 1 {
		d.warnings = append(d.warnings, fmt.Sprintf("the file has %d YAML documents; only the first has an effect", n))
	}
	switch {
	case err != nil && !utf8.Valid(data), yaml.Unmarshal(data, &d.root) != nil:
		return nil, fmt.Errorf("failed to decode: %w", explain(data, err))
	case err == nil:
		return &d, nil
	}
	if err := without(ours, err); runtime.IsStrictDecodingError(err) {
		d.warnings = append(d.warnings, "Using lenient decoding as strict decoding failed: "+
			strings.Join(strings.Fields(err.Error()), " "))
	}
	d.warnings = modernize(d.root, d.warnings)
	// The fields are read one by one, so that all problems are reported at once.
	kind, err := json.Marshal(map[string]any{"apiVersion": d.root["apiVersion"], "kind": d.root["kind"]})
	if err == nil {
		_, _, err = serializer.NewCodecFactory(scheme).UniversalDeserializer().Decode(kind, nil, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to decode: %w", explain(data, err))
	}
	return &d, nil
}

var (
	// separator is the line before a YAML document, and remark one without content.
	separator = regexp.MustCompile(`(?m)^---(?:[ \t].*)?\r?$`)
	remark    = regexp.MustCompile(`(?m)^(?:[ \t]*(?:#.*)?|%.*|\.\.\.[ \t]*)\r?$`)
)

// documents returns the number of YAML documents with content.
func documents(data []byte) (n int) {
	for _, doc := range separator.Split(string(data), -1) {
		if strings.TrimSpace(remark.ReplaceAllString(doc, "")) != "" {
			n++
		}
	}
	return n
}

// without returns the error of a strict decoding without its parts about the fields ours; nil if it
// has no others.
func without(ours []string, err error) error {
	strict, ok := runtime.AsStrictDecodingError(err)
	if !ok {
		return err
	}
	others := slices.DeleteFunc(slices.Clone(strict.Errors()), func(err error) bool {
		return slices.ContainsFunc(ours, func(name string) bool {
			return err.Error() == fmt.Sprintf("unknown field %q", name)
		})
	})
	if len(others) == 0 {
		return nil
	}
	return runtime.NewStrictDecodingError(others)
}

// fill puts the values of a file in the current layout into s, which has the defaults. It returns a
// problem for each value that is not of its field's type, such as text for a number. A decoder
// would stop at the first, and report only its Go name.
func (s *settings) fill(root map[string]any) (all Problems) {
	for _, l := range s.leaves() {
		at, value := find(root, l.Path)
		if value == nil {
			continue
		}
		data, err := json.Marshal(value)
		want := "a mapping of fields to values"
		if at == l.Path {
			fresh := reflect.New(l.Value.Type())
			if err == nil && json.Unmarshal(data, fresh.Interface()) == nil {
				if !fresh.Elem().IsZero() {
					l.Value.Set(fresh.Elem())
				}
				continue
			}
			k := kindOf(l.Value.Type())
			want = cmp.Or(k.inFile, k.want)
		}
		take(root, at)
		says, isText := value.(string)
		if !isText {
			says = string(data)
		}
		all = append(all, Problem{inFile + at, says, "failed to decode: want " + want})
	}
	return all
}

// find returns the value at path, nil without one, and its path. If a block on the way is no
// mapping, it returns that block.
func find(root map[string]any, path string) (at string, value any) {
	names := strings.Split(path, ".")
	value = root
	for i, name := range names {
		block, ok := value.(map[string]any)
		if !ok {
			return strings.Join(names[:i], "."), value
		}
		value = block[name]
		if value == nil {
			return path, nil
		}
	}
	return path, value
}

// explain describes in the user's terms why data could not be decoded.
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
		return fmt.Errorf("its apiVersion is %s and its kind %s: %s", quote(fields["apiVersion"]),
			quote(fields["kind"]), want)
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

// isZero reports whether a value of a YAML file is empty: kubeadm writes every field.
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
