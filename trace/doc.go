// Package trace computes the treatment of a packet: which frontend decides, by which route, which
// backends may answer, and why. It is pure: it reads the desired table ([kube-proxy/lb]) and knows
// no kernel. A plane reads the kernel's treatment of the same packet ([Kernel]); a [Difference]
// between the two is a finding.
package trace
