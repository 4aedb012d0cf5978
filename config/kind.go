package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// kind describes a type of values: their syntax in a flag and in a file.
type kind struct {
	// name is for help and documents.
	name string
	// want describes the values of a flag, inFile those of a file, if they differ
	want, inFile string
	// parse reads the text of a flag into at, which has the former value; print writes it.
	parse func(text string, at reflect.Value) error
	print func(at reflect.Value) string
}

// severity is a name of klog's or its number.
type severity int

var severities = []string{"INFO", "WARNING", "ERROR", "FATAL"}

// taken is a flag that accepts any value, since none has an effect. It never prints its value,
// which may be a secret.
type taken struct{ typ, usual string }

// kindOf returns the kind of a value, or of the target of its pointer.
func kindOf(t reflect.Type) kind {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t {
	case reflect.TypeFor[metav1.Duration]():
		return durationKind(func(at reflect.Value) *metav1.Duration { return at.Addr().Interface().(*metav1.Duration) })
	case reflect.TypeFor[logsapi.TimeOrMetaDuration](): // a number is of nanoseconds, as older versions wrote it
		return durationKind(func(at reflect.Value) *metav1.Duration {
			return &at.Addr().Interface().(*logsapi.TimeOrMetaDuration).Duration
		})
	case reflect.TypeFor[logsapi.VModuleConfiguration]():
		return kind{name: "list", want: "pattern=N, with commas between",
			inFile: "a list of mappings with filePattern and verbosity",
			parse:  vmodule, print: printVModule}
	case reflect.TypeFor[resource.QuantityValue]():
		return kind{name: "quantity", want: "a number of bytes such as 512, 64K or 1Mi",
			parse: func(s string, at reflect.Value) (err error) {
				at.Addr().Interface().(*resource.QuantityValue).Quantity, err = resource.ParseQuantity(s)
				return err
			},
			print: func(at reflect.Value) string { return at.Addr().Interface().(*resource.QuantityValue).String() }}
	case reflect.TypeFor[severity]():
		return kind{name: "int32", want: "0 to 3, INFO, WARNING, ERROR or FATAL", parse: parseSeverity, print: printAny}
	case reflect.TypeFor[taken]():
		return kind{parse: func(string, reflect.Value) error { return nil },
			print: func(at reflect.Value) string { return at.Interface().(taken).usual }}
	}
	return basicKind(t)
}

// basicKind is the kind of a type that Go has by itself.
func basicKind(t reflect.Type) kind {
	switch t.Kind() {
	case reflect.Bool:
		return kind{name: "bool", want: "true or false", print: printAny,
			parse: func(s string, at reflect.Value) error {
				b, err := strconv.ParseBool(s)
				at.SetBool(b)
				return err
			}}
	case reflect.Int32:
		return kind{name: "int32", want: "a whole number below 2^31", print: printAny,
			parse: func(s string, at reflect.Value) error {
				n, err := strconv.ParseInt(s, 0, 32)
				at.SetInt(n)
				return err
			}}
	case reflect.Uint32:
		return kind{name: "int32", want: "a whole number from 0, below 2^31", print: printAny,
			parse: func(s string, at reflect.Value) error {
				n, err := strconv.ParseUint(strings.TrimPrefix(s, "+"), 0, 31)
				at.SetUint(n)
				return err
			}}
	case reflect.Float32:
		return kind{name: "float32", want: "a number",
			parse: func(s string, at reflect.Value) error {
				f, err := strconv.ParseFloat(s, 32)
				at.SetFloat(f)
				return err
			},
			print: func(at reflect.Value) string { return strconv.FormatFloat(at.Float(), 'g', -1, 32) }}
	case reflect.Slice: // comma-separated, and may be repeated (FL-07)
		return kind{name: "list", want: "a comma-separated list", inFile: "a list",
			parse: func(s string, at reflect.Value) error {
				at.Set(reflect.ValueOf(slices.Concat(at.Interface().([]string), parts(s))))
				return nil
			},
			print: func(at reflect.Value) string { return strings.Join(at.Interface().([]string), ",") }}
	case reflect.Map:
		return kind{name: "map", want: "Name=true or Name=false, with commas between",
			inFile: "a mapping of names to true or false",
			parse:  gateMap, print: printGates}
	default:
		return kind{name: "string", inFile: "text, in quotes if it looks like something else",
			parse: func(s string, at reflect.Value) error { at.SetString(s); return nil }, print: reflect.Value.String}
	}
}

// durationKind is the kind of a type with a duration in it.
func durationKind(in func(at reflect.Value) *metav1.Duration) kind {
	return kind{name: "duration", want: "a duration such as 30s, 1m30s or 250ms",
		parse: func(s string, at reflect.Value) (err error) {
			in(at).Duration, err = time.ParseDuration(s)
			return err
		},
		print: func(at reflect.Value) string { return in(at).Duration.String() }}
}

func printAny(at reflect.Value) string { return fmt.Sprint(at.Interface()) }

// parts returns the parts between commas.
func parts(s string) (all []string) {
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		if part != "" {
			all = append(all, part)
		}
	}
	return all
}

// gateMap is Name=bool,…; it may be repeated, and the last word on a gate counts.
func gateMap(s string, at reflect.Value) error {
	all := maps.Clone(at.Interface().(map[string]bool))
	if all == nil {
		all = map[string]bool{}
	}
	for _, part := range parts(s) {
		gate, on, _ := strings.Cut(part, "=")
		b, err := strconv.ParseBool(strings.TrimSpace(on))
		if err != nil {
			return err
		}
		all[strings.TrimSpace(gate)] = b
	}
	at.Set(reflect.ValueOf(all))
	return nil
}

func printGates(at reflect.Value) string {
	all := at.Interface().(map[string]bool)
	var parts []string
	for _, gate := range slices.Sorted(maps.Keys(all)) {
		parts = append(parts, fmt.Sprintf("%s=%t", gate, all[gate]))
	}
	return strings.Join(parts, ",")
}

// vmodule is pattern=N,…
func vmodule(s string, at reflect.Value) error {
	var all logsapi.VModuleConfiguration
	for part := range strings.SplitSeq(s, ",") {
		if part == "" {
			continue
		}
		pattern, level, ok := strings.Cut(part, "=")
		n, err := strconv.ParseUint(level, 10, 31)
		if err != nil || !ok || pattern == "" {
			return strconv.ErrSyntax
		}
		all = append(all, logsapi.VModuleItem{FilePattern: pattern, Verbosity: logsapi.VerbosityLevel(n)})
	}
	at.Set(reflect.ValueOf(all))
	return nil
}

func printVModule(at reflect.Value) string {
	var parts []string
	for _, item := range at.Interface().(logsapi.VModuleConfiguration) {
		parts = append(parts, fmt.Sprintf("%s=%d", item.FilePattern, item.Verbosity))
	}
	return strings.Join(parts, ",")
}

func parseSeverity(s string, at reflect.Value) error {
	n := slices.Index(severities, strings.ToUpper(s))
	if n < 0 {
		var err error
		n, err = strconv.Atoi(s)
		if err != nil {
			return err
		}
		if n < 0 || n >= len(severities) {
			return strconv.ErrRange
		}
	}
	at.SetInt(int64(n))
	return nil
}
