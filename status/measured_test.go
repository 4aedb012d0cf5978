package status

import (
	"fmt"
	"slices"
	"testing"

	"kube-proxy/mode"
)

// A value of a family has its label; a value of the host, which each plane emits, has one sample.
func TestMeasured(t *testing.T) {
	s := &snapshot{families: []familyState{
		{name: "IPv4", samples: map[string][]sample{"rules": {{1, []string{"nat"}}, {2, []string{"filter"}}}}},
		{name: "IPv6", samples: map[string][]sample{"rules": {{3, []string{"nat"}}}, "free": {{7, nil}}}},
		{name: "none", samples: map[string][]sample{"free": {{8, nil}}}},
	}}
	for _, c := range []struct {
		metric mode.Metric
		want   []string
	}{
		{mode.Metric{Name: "rules", Labels: []string{"ip_family", "table"}}, []string{"1 [IPv4 nat]", "2 [IPv4 filter]",
			"3 [IPv6 nat]"}},
		{mode.Metric{Name: "free"}, []string{"7 []"}},
		{mode.Metric{Name: "other"}, nil},
	} {
		var got []string
		measured(c.metric)(s, func(value float64, labels ...string) {
			got = append(got, fmt.Sprint(value, " ", labels))
		})
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.metric.Name, got, c.want)
		}
	}
}
