package preflight

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// Windows Firewall's decisions by its rules in the registry (WN-26).
func TestFirewall(t *testing.T) {
	const program = `C:\k\kube-proxy.exe`
	in := func(fields string) string {
		return "v2.30|Action=Allow|Active=TRUE|Dir=In|Protocol=6|" + fields + "|Name=x|"
	}
	anyPort := in("App=" + strings.ToUpper(program))
	for _, c := range []struct {
		name  string
		rules []string
		want  string // the severities of the health port and of the healthCheckNodePorts, or of the listeners
	}{
		{"none", nil, "warning warning; warning warning"},
		{"the program", []string{anyPort}, "ok ok; ok ok"},
		{"another program", []string{in(`App=C:\other.exe`)}, "warning warning; warning warning"},
		{"the port", []string{in("LPort=10256")}, "ok warning; ok warning"},
		{"several ports and a range", []string{in("LPort=80|LPort=10256|LPort2_10=30000-32767")}, "ok ok; ok warning"},
		{"a part of the range", []string{in("LPort=30000-31000")}, "warning warning; warning warning"},
		{"every port", []string{in("Profile=Domain|RA4=10.0.0.0/255.0.0.0")}, "ok ok; ok ok"},
		{"any protocol", []string{"v2.30|Action=Allow|Active=TRUE|Dir=In|Name=x|"}, "ok ok; ok ok"},
		{"UDP", []string{"v2.30|Action=Allow|Active=TRUE|Dir=In|Protocol=17|Name=x|"},
			"warning warning; warning warning"},
		{"turned off, or for what goes out", []string{strings.Replace(anyPort, "TRUE", "FALSE", 1),
			strings.Replace(anyPort, "Dir=In", "Dir=Out", 1)}, "warning warning; warning warning"},
		{"a service's own", []string{in("Svc=w32time")}, "warning warning; warning warning"},
		{"a rule that blocks counts more", []string{anyPort, strings.Replace(in("LPort=10256"), "Allow", "Block", 1)},
			"warning ok; warning ok"},
		{"a rule that blocks some clients", []string{anyPort, strings.Replace(in("LPort=10256|RA4=192.0.2.1"), "Allow",
			"Block", 1)}, "ok ok; ok ok"},
	} {
		var got []string
		for _, asked := range []string{"first", "second"} { // the second has listeners
			s, f := usual()
			s.Configured, f.OS, f.Firewall.Value = asked, "windows", Firewall{true, c.rules, program}
			var severities []string
			for _, f := range Judge(s, f) {
				if f.ID == "firewall" {
					severities = append(severities, string(f.Severity))
					if f.Severity == Warning && !strings.Contains(f.Remedy, "New-NetFirewallRule -Direction Inbound") {
						t.Errorf("%s: %s: no command, but %s", c.name, f.About, f.Remedy)
					}
				}
			}
			got = append(got, strings.Join(severities, " "))
		}
		if have := strings.Join(got, "; "); have != c.want {
			t.Errorf("%s: %s, want %s", c.name, have, c.want)
		}
	}
	for _, c := range []struct {
		os   string
		have Known[Firewall]
		want []Severity
	}{
		{"windows", known(Firewall{}, nil), []Severity{OK}},
		{"windows", known(Firewall{}, errors.New("access denied")), []Severity{Unknown}},
		{"linux", known(Firewall{Blocks: true}, nil), nil},
	} {
		s, f := usual()
		f.OS, f.Firewall = c.os, c.have
		var got []Severity
		for _, f := range Judge(s, f) {
			if f.ID == "firewall" {
				got = append(got, f.Severity)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s %+v: %v, want %v", c.os, c.have, got, c.want)
		}
	}
}
