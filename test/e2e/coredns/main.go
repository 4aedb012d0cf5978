// The program coredns is CoreDNS with the plugins of a cluster's DNS server, and those that
// upstream's tests configure.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() {
	// In the order of a query through them.
	dnsserver.Directives = []string{"health", "ready", "log", "errors", "hosts", "kubernetes", "forward"}
	coremain.Run()
}
