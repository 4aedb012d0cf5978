//go:build linux

package iptables

import (
	"bytes"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane/planetest"
)

// What a Service weighs is as many rules, chains and lists of clients as the kernel has for it at most (TN-11).
func TestWeigh(t *testing.T) {
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		t.Run(fam.String(), func(t *testing.T) {
			planetest.Weighing{Family: fam, Weigh: weigh, Within: 3, Costly: 200_000, Count: func(t *testing.T, want *lb.Table) int {
				text, err := Render(Config{Family: fam}, want)
				if err != nil {
					t.Fatal(err)
				}
				rules, chains := bytes.Count(text, []byte("\n-A ")), bytes.Count(text, []byte("\n:"))
				return (rules+chains)*ruleObjects + bytes.Count(text, []byte("-m recent --set "))*recentObjects
			}}.Run(t)
		})
	}
}
