// Package option has the types that describe flags and fields of the configuration: package config
// has those common to all modes, each mode its own ([kube-proxy/mode.Mode].Options).
//
// A [Section] describes a group of them in one place: the values with their defaults, the text for
// help and documentation, and the validation.
package option

import (
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Duration is written as "1m30s".
type Duration = metav1.Duration

// Section is a group of flags and fields.
type Section struct {
	// Title is the heading of the flags in the help text, where sections with one title are one.
	// Order is its place there.
	Title string
	Order int
	// Fields are in the order of the help text.
	Fields []Field
	// Values points to a struct with the defaults. Its fields overlay those of the file, with their
	// JSON tags as names. As in the file's published type, a pointer distinguishes zero from "not
	// given"; a zero value that is no pointer is not given. Nil for a section that only has flags,
	// or fields of the published type.
	Values any
	// Check reports invalid values; nil for no check.
	Check func(*Report)
	// OnlyInMode: faults do not matter while the section's mode does not run.
	OnlyInMode bool
}

// Field is a flag, a field of the file, or both.
type Field struct {
	// Path is the path of the field, separated by dots; "" for a flag without a field. At points to
	// the value of such a flag.
	Path string
	At   any
	// Flag is the name, without its dashes; "" for none. Short is its one letter, Alone its value
	// if it is given without one.
	Flag, Short, Alone string
	// Row is the row of the specification; EXT is an extension. A flag without a row but with a
	// path sets a field of another section, which has the rest.
	Row string
	// Restart is the reason why a change of the field needs a new process; "": it takes effect
	// live.
	Restart string
	// Wins: the flag overrides the field of the file. Otherwise the file overrides the flag
	// (FL-03).
	Wins bool
	// Once: two values contradict each other.
	Once bool
	Effect
	// Help is for the flag and for the field; the word in backquotes is the value's name.
	Help string
}

// Effect describes where a field has an effect; the zero Effect means everywhere.
type Effect struct {
	// System is the only operating system that has it, as [runtime.GOOS] names it; "" for all.
	System string
	// Gone describes the replacement of something that no proxy has any longer; "" if it still
	// exists.
	Gone string
}

// AtStart is the usual reason for a new process.
const AtStart = "the mode reads it when it begins"

// Blocks are the values of sections, each a pointer to a struct of its own type.
type Blocks []any

// Of returns the block of a type; fallback without one.
func Of[T any](all Blocks, fallback *T) *T {
	for _, b := range all {
		if t, ok := b.(*T); ok {
			return t
		}
	}
	return fallback
}

// Leaf is a value of a block, and its path.
type Leaf struct {
	Path  string
	Value reflect.Value
}

// Leaves returns the values of the struct that at points to, in the order of its type. Setting one
// sets the struct.
func Leaves(at any) []Leaf {
	var all []Leaf
	var walk func(prefix string, v reflect.Value)
	walk = func(prefix string, v reflect.Value) {
		for i := range v.NumField() {
			f, sub := v.Type().Field(i), v.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case f.Type == reflect.TypeFor[metav1.TypeMeta](), !f.IsExported():
			case f.Anonymous && name == "":
				walk(prefix, sub)
			case sub.Kind() == reflect.Struct && !readsItself(sub.Type()):
				walk(prefix+name+".", sub)
			default:
				all = append(all, Leaf{prefix + name, sub})
			}
		}
	}
	walk("", reflect.ValueOf(at).Elem())
	return all
}

// readsItself reports whether a struct is a single value in the file.
func readsItself(t reflect.Type) bool {
	_, ok := reflect.PointerTo(t).MethodByName("UnmarshalJSON")
	return ok
}
