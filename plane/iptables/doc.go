// Package iptables is the data plane for --proxy-mode iptables.
package iptables
