package config

import (
	"encoding/json"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// misfits takes out of root, a file of today's layout, what is not of its field's type, such as text for a number, and
// returns a problem for each. A decoder gives up at the first, and says only what Go calls it.
func misfits(root map[string]any) Problems {
	var all Problems
	var s settings
	for _, l := range leaves(&s) {
		at, value := find(root, l.path)
		if value == nil {
			continue
		}
		data, err := json.Marshal(value)
		want := "a mapping of fields to values"
		if at == l.path {
			if err == nil && json.Unmarshal(data, l.value.Addr().Interface()) == nil {
				continue
			}
			want = wantType(l.value.Type())
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

// find returns the value at path, nil if there is none, and its path. Where a block on the way is no mapping, it is that
// block.
func find(root map[string]any, path string) (at string, value any) {
	names := strings.Split(path, ".")
	value = root
	for i, name := range names {
		block, ok := value.(map[string]any)
		if !ok {
			return strings.Join(names[:i], "."), value
		}
		if value = block[name]; value == nil {
			return path, nil
		}
	}
	return path, value
}

// wantType says what may be written into a field of the type.
func wantType(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[metav1.Duration](), reflect.TypeFor[*metav1.Duration](), reflect.TypeFor[logsapi.TimeOrMetaDuration]():
		return wantDuration
	case reflect.TypeFor[logsapi.VModuleConfiguration]():
		return "a list of mappings with filePattern and verbosity"
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int32:
		return "a whole number below 2^31"
	case reflect.Uint32:
		return "a whole number from 0, below 2^31"
	case reflect.Float32:
		return "a number"
	case reflect.Map:
		return "a mapping of names to true or false"
	case reflect.Slice:
		return "a list"
	case reflect.Struct: // the only one is a quantity
		return "a number of bytes such as 512, 64K or 1Mi"
	default:
		return "text, in quotes if it looks like something else"
	}
}
