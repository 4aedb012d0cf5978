package userspace

import (
	"fmt"
	"testing"

	"kube-proxy/config/option"
)

// The three forms of --proxy-port-range, and the values that mean any port (CF-44).
func TestPortRangeCF44(t *testing.T) {
	for _, c := range []struct {
		text        string
		first, last uint16
		ok          bool
	}{
		{"", 0, 0, true}, {"  ", 0, 0, true}, {"0", 0, 0, true}, {"0-0", 0, 0, true}, {"0+0", 0, 0, true},
		{"100-200", 100, 200, true}, {"100-100", 100, 100, true}, {" 100-200 ", 100, 200, true},
		{"1-65535", 1, 65535, true},
		{"100+20", 100, 120, true}, {"100+0", 100, 100, true}, {"65000+65535", 65000, 65535, true},
		{"8080", 8080, 8080, true}, {"65535", 65535, 65535, true},
		{text: "200-100"}, {text: "0-100"}, {text: "0+1"}, {text: "65536"}, {text: "1-65536"}, {text: "1+65536"},
		{text: "-1"},
		{text: "+1"}, {text: "1-"}, {text: "1+"}, {text: "-"}, {text: "+"}, {text: "1-2-3"}, {text: "1+2+3"},
		{text: "1-+2"}, {text: "a-b"},
		{text: "1 - 2"}, {text: "0x10-0x20"}, {text: "1,2"}, {text: "99999999999999999999"}, {text: "1\x00"},
		{text: "１-２"},
	} {
		first, last, ok := portRange(c.text)
		if ok != c.ok || ok && (first != c.first || last != c.last) {
			t.Errorf("%q: %d to %d, %v; want %d to %d, %v", c.text, first, last, ok, c.first, c.last, c.ok)
		}
	}
}

// An accepted value is a range of ports, or no range; all its forms mean the same. The error of any
// other value has the field and the value (CF-44).
func FuzzPortRange(f *testing.F) {
	for _, s := range []string{"", "0", "0-0", "1-2", "1+2", "8080", "9-8", "65535+1", "1-65536", "-", "+", "a",
		"1-2-3", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		reported := ""
		o := defaults()
		o.PortRange = s
		o.check(&option.Report{Wrong: func(path, value, want string) {
			reported += fmt.Sprintf("%s: %q: %.15s", path, value, want)
		}})
		first, last, ok := portRange(s)
		if !ok {
			if reported != fmt.Sprintf("portRange: %q: want first-last", s) {
				t.Errorf("the error for %q is %q", s, reported)
			}
			return
		}
		if reported != "" || first > last || first == 0 && last != 0 {
			t.Fatalf("%q: %d to %d, %s", s, first, last, reported)
		}
		for _, same := range []string{fmt.Sprintf("%d-%d", first, last), fmt.Sprintf("%d+%d", first, last-first)} {
			if a, b, ok := portRange(same); !ok || a != first || b != last {
				t.Errorf("%q is %d to %d, and %q %d to %d, %v", s, first, last, same, a, b, ok)
			}
		}
	})
}
