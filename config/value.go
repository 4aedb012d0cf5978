package config

import (
	"fmt"
	"reflect"
)

// value is a flag's value. A text that does not parse is noted as a problem and the value stays:
// pflag would stop at the first bad flag, and the user would meet them one by one.
type value struct {
	kind
	entry *entry
	at    reflect.Value
	note  func(Problem)
	given bool
}

func (v *value) Set(s string) error {
	if v.entry.Once && v.given && v.String() != s {
		v.note(Problem{"--" + v.entry.Flag, s, fmt.Sprintf("it was already %q: want one value", v.String())})
		return nil
	}
	to := v.at
	if to.Kind() == reflect.Pointer {
		to = reflect.New(to.Type().Elem()).Elem()
	}
	fresh := reflect.New(to.Type()).Elem()
	if v.given || to.Kind() != reflect.Slice { // the first use of a list replaces the default (FL-07)
		fresh.Set(to)
	}
	if err := v.parse(s, fresh); err != nil {
		v.note(Problem{"--" + v.entry.Flag, s, "want " + v.want})
		return nil
	}
	v.given = true
	if v.at.Kind() == reflect.Pointer {
		fresh = fresh.Addr()
	}
	v.at.Set(fresh)
	return nil
}

func (v *value) String() string {
	if !v.at.IsValid() { // pflag makes a zero value to find whether a default is worth printing
		return ""
	}
	if at := reflect.Indirect(v.at); at.IsValid() {
		return v.print(at)
	}
	return ""
}

func (v *value) Type() string {
	if t, ok := v.at.Interface().(taken); ok {
		return t.typ
	}
	return v.name
}
