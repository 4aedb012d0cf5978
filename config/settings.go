package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/kube-proxy/config/v1alpha1"

	"kube-proxy/config/option"
)

// settings is the target of flags and file: the published type, overlaid with the blocks of
// sections. A block may have fields that the published type has, or once had, or never had.
type settings struct {
	v1alpha1.KubeProxyConfiguration
	blocks option.Blocks
	known  []option.Leaf // cached result of leaves
}

// copy returns settings that share no variable with s.
func (s *settings) copy() *settings {
	c := &settings{KubeProxyConfiguration: s.KubeProxyConfiguration}
	for _, b := range s.blocks {
		fresh := reflect.New(reflect.TypeOf(b).Elem())
		fresh.Elem().Set(reflect.ValueOf(b).Elem())
		c.blocks = append(c.blocks, fresh.Interface())
	}
	return c
}

// set copies each value of other settings.
func (s *settings) set(other *settings) {
	mine := s.leaves()
	for i, l := range other.leaves() {
		mine[i].Value.Set(l.Value)
	}
}

// leaves returns all values of fields: those of the published type, and then those of blocks.
func (s *settings) leaves() []option.Leaf {
	if s.known != nil {
		return s.known
	}
	var laid []option.Leaf
	tops := map[string]bool{}
	for _, b := range s.blocks {
		for _, l := range option.Leaves(b) {
			laid = append(laid, l)
			tops[top(l.Path)] = true
		}
	}
	under := slices.DeleteFunc(option.Leaves(&s.KubeProxyConfiguration), func(l option.Leaf) bool {
		return tops[top(l.Path)]
	})
	s.known = append(under, laid...)
	return s.known
}

// top is the first name of a path.
func top(path string) string {
	name, _, _ := strings.Cut(path, ".")
	return name
}

func (s *settings) at(path string) reflect.Value {
	all := s.leaves()
	i := slices.IndexFunc(all, func(l option.Leaf) bool { return l.Path == path })
	if i < 0 {
		panic(fmt.Sprintf("config: no field %q in the type: the tables are wrong", path))
	}
	return all[i].Value
}

// read stores the value at a path, or the target of its pointer; nothing if there is no value.
func read[T any](s *settings, path string, into *T) {
	for _, l := range s.leaves() {
		if v := reflect.Indirect(l.Value); l.Path == path && v.CanConvert(reflect.TypeFor[T]()) {
			*into = v.Convert(reflect.TypeFor[T]()).Interface().(T)
		}
	}
}

// written returns a value as written in a file.
func written(l option.Leaf) []byte {
	data, err := json.Marshal(l.Value.Interface())
	if err != nil {
		panic(fmt.Sprintf("config: the field %s cannot be written: %v", l.Path, err)) // a mistake of the type
	}
	return data
}

// root returns the fields of a file by their names.
func (s *settings) root() (map[string]any, error) {
	root := map[string]any{}
	for _, part := range append(option.Blocks{s.KubeProxyConfiguration}, s.blocks...) {
		fields := map[string]any{}
		data, err := json.Marshal(part)
		if err == nil {
			err = json.Unmarshal(data, &fields)
		}
		if err != nil {
			return nil, fmt.Errorf("write the configuration: %w", err)
		}
		maps.Copy(root, fields)
	}
	return root, nil
}

// ours are the top-level fields of blocks that the published type does not have.
func (s *settings) ours() (names []string) {
	var published []string
	for _, l := range option.Leaves(&s.KubeProxyConfiguration) {
		published = append(published, top(l.Path))
	}
	for _, b := range s.blocks {
		for _, l := range option.Leaves(b) {
			if name := top(l.Path); !slices.Contains(published, name) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}
