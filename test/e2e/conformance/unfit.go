package conformance

// Unfit are the tests that do not run here, by a regular expression of their names, each with the
// reason.
var Unfit = []struct{ Name, Reason string }{
	{`\[Disruptive\]|\[Flaky\]`, "upstream runs them in jobs of their own"},
	{`\[Feature:LoadBalancer\]`, "no cloud provider"},
	{`\[Feature:(SCTPConnectivity|SCTP)\]`, "the kernel may lack SCTP"},
	{`\[Feature:(Networking-IPv4|Networking-IPv6|Networking-DNS)\]|Forward PTR lookup`, "no Internet"},
	{`\[Feature:(IPv6DualStack|IPv6)\]`, "pods have IPv4 addresses alone"},
	{`\[Feature:(Networking-Performance|PerformanceDNS)\]`, "a measurement, not a test"},
	{`Netpol|NetworkPolicy`, "the CNI plugins of the lab enforce no policy"},
}
