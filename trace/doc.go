// Package trace says what becomes of a packet: which row of the table decides, by which route, who
// may answer, and why. It is pure: it reads the desired table ([kube-proxy/lb]) and knows no
// kernel. What the kernel's own state says of the same packet, a plane reads ([Kernel]); a
// [Difference] between the two is a finding.
package trace
