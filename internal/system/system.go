package system

import (
	"time"

	"kube-proxy/mode"
)

// Settings is the configuration of the host.
type Settings struct {
	// Mode is the running mode, and Asked its settings.
	Mode  mode.Mode
	Asked mode.Settings
	// Conntrack is applied in every mode.
	Conntrack Conntrack
	// OOMScoreAdj is for this process, -1000 to 1000 (CF-38).
	OOMScoreAdj int

	// IPv4 and IPv6 report which families the cluster uses: if one is not forwarded, there is a
	// warning.
	IPv4, IPv6 bool
}

// Conntrack holds settings of connection tracking (CF-39 to CF-42). It has the fields of
// config.Conntrack.
type Conntrack struct {
	// MaxPerCore times the number of CPUs is the most connections, but at least Min; MaxPerCore 0
	// leaves the kernel's.
	MaxPerCore, Min int
	// Timeouts; 0 leaves the kernel's.
	TCPEstablished, TCPCloseWait, UDP, UDPStream time.Duration
	// TCPBeLiberal: packets out of the window are not INVALID. False leaves the kernel's setting.
	TCPBeLiberal bool
}

// ReadOnlySysFS is the reason of the event that a read-only /sys calls for (EV-04).
const ReadOnlySysFS = "readOnlySysFS"

// Report is the result of the settings, beside errors. It is for the log.
type Report struct {
	// Wrote has a sentence for each setting that was changed.
	Wrote []string
	// Kept has a sentence for each that could not be, and suffices as it is.
	Kept []string
	// Warnings are settings that failed, and without which the proxy still works.
	Warnings []Warning
}

// Warning is one thing that an operator should fix.
type Warning struct {
	// Event is the reason of the event to send about the Node, ReadOnlySysFS; "" for the log alone.
	Event string
	// Text is one sentence.
	Text string
}

// Change is a sysctl that would be set.
type Change struct {
	// Name is the sysctl, Have its value, and Want its new value.
	Name, Have, Want string
	// Asks names the flag and the field that request it.
	Asks string
}
