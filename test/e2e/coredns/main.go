// The program coredns is CoreDNS with the plugins of a cluster's DNS server alone.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() {
	// In the order of a query through them.
	dnsserver.Directives = []string{"ready", "errors", "kubernetes"}
	coremain.Run()
}
