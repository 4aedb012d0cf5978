package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	return func(name string, note func(Problem)) pflag.Value {
		return &value[N]{at, "int", "a whole number below 2^31", func(s string) (N, error) {
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
		return &value[*int32]{at, "int", "a whole number below 2^31", func(s string) (*int32, error) {
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
		return &value[metav1.Duration]{at, "duration", "a duration such as 30s, 1m30s or 250ms",
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
