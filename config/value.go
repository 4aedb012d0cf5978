package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// value is a flag's value that lies in a field of Options. A text that does not parse is noted as a problem
// and the field stays: pflag would stop at the first bad flag, and the user would meet them one by one.
type value[T any] struct {
	at    *T
	typ   string // as help prints it
	want  string // what may be written
	parse func(string) (T, error)
	print func(T) string
	note  func(Problem)
	name  string
}

func (v *value[T]) Set(s string) error {
	parsed, err := v.parse(s)
	if err != nil {
		v.note(Problem{"--" + v.name, s, "want " + v.want})
		return nil
	}
	*v.at = parsed
	return nil
}

func (v *value[T]) String() string {
	if v.at == nil { // pflag makes a zero value to learn whether a default is worth printing
		return ""
	}
	return v.print(*v.at)
}

func (v *value[T]) Type() string { return v.typ }

const wantDuration = "a duration such as 30s, 1m30s or 250ms"

// maker makes the value of one flag.
type maker func(name string, note func(Problem)) pflag.Value

func text[S ~string](at *S) maker {
	return func(name string, note func(Problem)) pflag.Value {
		return &value[S]{at, "string", "text", func(s string) (S, error) { return S(s), nil },
			func(s S) string { return string(s) }, note, name}
	}
}

func boolean(at *bool) maker {
	return func(name string, note func(Problem)) pflag.Value {
		return &value[bool]{at, "bool", "true or false", strconv.ParseBool, strconv.FormatBool, note, name}
	}
}

func float(at *float32) maker {
	return func(name string, note func(Problem)) pflag.Value {
		return &value[float32]{at, "float32", "a number", func(s string) (float32, error) {
			f, err := strconv.ParseFloat(s, 32)
			return float32(f), err
		}, func(f float32) string { return strconv.FormatFloat(float64(f), 'g', -1, 32) }, note, name}
	}
}

func number[N ~int32 | ~uint32](at *N) maker {
	want := "a whole number below 2^31"
	if least := N(0) - 1; least > 0 {
		want = "a whole number from 0, below 2^31"
	}
	return func(name string, note func(Problem)) pflag.Value {
		return &value[N]{at, "int32", want, func(s string) (N, error) {
			n, err := strconv.ParseInt(s, 0, 32)
			if err == nil && int64(N(n)) != n {
				err = strconv.ErrRange
			}
			return N(n), err
		}, func(n N) string { return fmt.Sprint(n) }, note, name}
	}
}

// optional is a number whose field tells "not given" from 0.
func optional(at **int32) maker {
	return func(name string, note func(Problem)) pflag.Value {
		return &value[*int32]{at, "int32", "a whole number below 2^31", func(s string) (*int32, error) {
			n, err := strconv.ParseInt(s, 0, 32)
			small := int32(n)
			return &small, err
		}, func(n *int32) string {
			if n == nil {
				return ""
			}
			return strconv.Itoa(int(*n))
		}, note, name}
	}
}

func duration(at *metav1.Duration) maker {
	return func(name string, note func(Problem)) pflag.Value {
		return &value[metav1.Duration]{at, "duration", wantDuration,
			func(s string) (metav1.Duration, error) {
				d, err := time.ParseDuration(s)
				return metav1.Duration{Duration: d}, err
			}, func(d metav1.Duration) string { return d.Duration.String() }, note, name}
	}
}

// list is comma-separated and may be repeated; the first use replaces the default (FL-07).
func list(at *[]string) maker {
	return func(name string, note func(Problem)) pflag.Value {
		given := false
		return &value[[]string]{at, "list", "a comma-separated list", func(s string) ([]string, error) {
			var all []string
			if given {
				all = *at
			}
			given = true
			for part := range strings.SplitSeq(s, ",") {
				if part = strings.TrimSpace(part); part != "" {
					all = append(all, part)
				}
			}
			return all, nil
		}, func(all []string) string { return strings.Join(all, ",") }, note, name}
	}
}

// optionalBool is true or false; its field tells "not given" from false.
func optionalBool(at **bool) maker {
	return func(name string, note func(Problem)) pflag.Value {
		return &value[*bool]{at, "bool", "true or false", func(s string) (*bool, error) {
			b, err := strconv.ParseBool(s)
			return &b, err
		}, func(b *bool) string {
			if b == nil {
				return ""
			}
			return strconv.FormatBool(*b)
		}, note, name}
	}
}

// optionalText is text; its field tells "not given" from none.
func optionalText(at **string) maker {
	return func(name string, note func(Problem)) pflag.Value {
		return &value[*string]{at, "string", "text", func(s string) (*string, error) { return &s, nil }, func(s *string) string {
			if s == nil {
				return ""
			}
			return *s
		}, note, name}
	}
}

// optionalDuration is a duration whose field tells "not given" from 0.
func optionalDuration(at **metav1.Duration) maker {
	return func(name string, note func(Problem)) pflag.Value {
		return &value[*metav1.Duration]{at, "duration", wantDuration, func(s string) (*metav1.Duration, error) {
			d, err := time.ParseDuration(s)
			return &metav1.Duration{Duration: d}, err
		}, func(d *metav1.Duration) string {
			if d == nil {
				return ""
			}
			return d.Duration.String()
		}, note, name}
	}
}

// quantity is a number of bytes such as 64Ki.
func quantity(at *resource.QuantityValue) maker {
	return func(name string, note func(Problem)) pflag.Value {
		return &value[resource.QuantityValue]{at, "quantity", "a number of bytes such as 512, 64K or 1Mi",
			func(s string) (resource.QuantityValue, error) {
				q, err := resource.ParseQuantity(s)
				return resource.QuantityValue{Quantity: q}, err
			}, func(q resource.QuantityValue) string { return q.String() }, note, name}
	}
}

// gateMap is Name=bool,…; it may be repeated, and the last word on a gate counts.
func gateMap(at *map[string]bool) maker {
	return func(name string, note func(Problem)) pflag.Value {
		return &value[map[string]bool]{at, "map", "Name=true or Name=false, with commas between", func(s string) (map[string]bool, error) {
			all := maps.Clone(*at)
			if all == nil {
				all = map[string]bool{}
			}
			for part := range strings.SplitSeq(s, ",") {
				if part = strings.TrimSpace(part); part == "" {
					continue
				}
				gate, on, _ := strings.Cut(part, "=")
				b, err := strconv.ParseBool(strings.TrimSpace(on))
				if err != nil {
					return nil, err
				}
				all[strings.TrimSpace(gate)] = b
			}
			return all, nil
		}, func(all map[string]bool) string {
			var parts []string
			for _, gate := range slices.Sorted(maps.Keys(all)) {
				parts = append(parts, fmt.Sprintf("%s=%t", gate, all[gate]))
			}
			return strings.Join(parts, ",")
		}, note, name}
	}
}

// vmodule is pattern=N,…
func vmodule(at *logsapi.VModuleConfiguration) maker {
	return func(name string, note func(Problem)) pflag.Value {
		return &value[logsapi.VModuleConfiguration]{at, "list", "pattern=N, with commas between", func(s string) (logsapi.VModuleConfiguration, error) {
			var all logsapi.VModuleConfiguration
			for part := range strings.SplitSeq(s, ",") {
				if part == "" {
					continue
				}
				pattern, level, ok := strings.Cut(part, "=")
				n, err := strconv.ParseUint(level, 10, 31)
				if err != nil || !ok || pattern == "" {
					return nil, strconv.ErrSyntax
				}
				all = append(all, logsapi.VModuleItem{FilePattern: pattern, Verbosity: logsapi.VerbosityLevel(n)})
			}
			return all, nil
		}, func(all logsapi.VModuleConfiguration) string {
			var parts []string
			for _, item := range all {
				parts = append(parts, fmt.Sprintf("%s=%d", item.FilePattern, item.Verbosity))
			}
			return strings.Join(parts, ",")
		}, note, name}
	}
}

var severities = []string{"INFO", "WARNING", "ERROR", "FATAL"}

// severity is a name or its number.
func severity(at *int) maker {
	return func(name string, note func(Problem)) pflag.Value {
		return &value[int]{at, "int32", "0 to 3, INFO, WARNING, ERROR or FATAL", func(s string) (int, error) {
			if i := slices.Index(severities, strings.ToUpper(s)); i >= 0 {
				return i, nil
			}
			n, err := strconv.Atoi(s)
			if err == nil && (n < 0 || n > 3) {
				err = strconv.ErrRange
			}
			return n, err
		}, strconv.Itoa, note, name}
	}
}

// ignored takes anything: nobody reads it. It never shows what it was given, which may be a secret.
func ignored(typ, def string) maker {
	return func(name string, note func(Problem)) pflag.Value {
		at := def
		return &value[string]{&at, typ, "anything", func(string) (string, error) { return def, nil },
			func(s string) string { return s }, note, name}
	}
}

// once makes a flag that may not be given twice with two different values: two modes at once.
func once(make maker) maker {
	return func(name string, note func(Problem)) pflag.Value {
		return &onceValue{Value: make(name, note), name: name, note: note}
	}
}

type onceValue struct {
	pflag.Value
	name  string
	note  func(Problem)
	given bool
}

func (v *onceValue) Set(s string) error {
	if v.given && v.String() != s {
		v.note(Problem{"--" + v.name, s, fmt.Sprintf("it was %q before: want one of them", v.String())})
		return nil
	}
	v.given = true
	return v.Value.Set(s)
}
