package config

import (
	"encoding"
	"encoding/json"
	"maps"
	"reflect"
)

// Configz returns the configuration for /configz: an object for encoding/json in which fields have
// the names of the Go types and not those of the file, as upstream's internal type prints itself
// (HT-24).
func (c *Config) Configz() any {
	fields := named(reflect.ValueOf(c.file.KubeProxyConfiguration)).(map[string]any)
	for _, b := range c.file.blocks {
		maps.Copy(fields, named(reflect.ValueOf(b)).(map[string]any))
	}
	return fields
}

// named returns v with structs as maps from the fields' Go names. Types with their own text form,
// such as durations, stay as they are.
func named(v reflect.Value) any {
	if !v.IsValid() {
		return nil
	}
	switch v.Interface().(type) {
	case json.Marshaler, encoding.TextMarshaler:
		return v.Interface()
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return nil
		}
		return named(v.Elem())
	case reflect.Struct:
		fields := map[string]any{}
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Name != "TypeMeta" {
				fields[f.Name] = named(v.Field(i))
			}
		}
		return fields
	case reflect.Slice:
		list := make([]any, v.Len())
		for i := range list {
			list[i] = named(v.Index(i))
		}
		return list
	default:
		return v.Interface()
	}
}
