package event

import (
	"fmt"
	"strings"
)

// Page returns docs/events.md.
func Page() string {
	var b strings.Builder
	b.WriteString("# Events\n\n<!-- Made by `go test ./event -run TestPage -update`. Do not edit. -->\n\n" +
		"kube-proxy sends these events through `events.k8s.io/v1` with reportingController `kube-proxy`, and logs " +
		"the same facts.\n" +
		"Repetitions within an hour are counted in the event's series, which is updated after a minute and then less " +
		"often.\n\n" +
		"Reasons that begin with KubeProxy are ours, except KubeProxyIncorrectIPVersion. In parentheses: the object, " +
		"and the\n" +
		"row of [the specification](behaviour.md). Events without *Normal* are warnings.\n\n")
	for _, e := range catalogue {
		kind := ""
		if e.Type == "Normal" {
			kind = ", *Normal*"
		}
		fmt.Fprintf(&b, "- `%s` (%s, %s%s): %s\n", e.Reason, e.Regards, e.Row, kind, e.Meaning)
	}
	return b.String()
}
