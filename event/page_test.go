package event

import (
	"fmt"
	"strings"
)

// Page returns docs/events.md.
func Page() string {
	var b strings.Builder
	b.WriteString("# Events\n\n<!-- Made by `go test ./event -run TestPage -update`. Do not edit. -->\n\n" +
		"What kube-proxy tells the cluster through `events.k8s.io/v1`, with reportingController `kube-proxy`. All of it stands in the log\n" +
		"too. What happens again within an hour is counted in the event's series, which is updated after a minute at\n" +
		"the earliest, then ever more rarely, and not sent as another event.\n\n" +
		"Reasons that begin with KubeProxy, but for KubeProxyIncorrectIPVersion, are ours. EV-04's and EV-07's are spelled as the\n" +
		"[the behaviour book](behaviour.md) has them; *EXT* is ours.\n\n" +
		"| reason | type | action | regards | row | note | meaning |\n|---|---|---|---|---|---|---|\n")
	for _, e := range catalogue {
		fmt.Fprintf(&b, "| `%s` | %s | `%s` | %s | %s | %s | %s |\n", e.Reason, e.Type, e.Action, e.Regards, e.Row, e.Note, e.Meaning)
	}
	return b.String()
}
