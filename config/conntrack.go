package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kube-proxy/config/option"
)

// Conntrack holds settings of the kernel's connection tracking.
type Conntrack struct {
	// MaxPerCore times the number of CPUs is the limit, at least Min; MaxPerCore 0 leaves the
	// kernel's.
	MaxPerCore, Min int
	// Timeouts; 0 leaves the kernel's.
	TCPEstablished, TCPCloseWait, UDP, UDPStream time.Duration
	TCPBeLiberal                                 bool
}

func (o *Options) conntrackSection() option.Section {
	f := &o.file.Conntrack
	f.MaxPerCore, f.Min = new(int32(32*1024)), new(int32(128*1024))
	f.TCPEstablishedTimeout = &metav1.Duration{Duration: 24 * time.Hour}
	f.TCPCloseWaitTimeout = &metav1.Duration{Duration: time.Hour}
	return option.Section{Title: "Conntrack", Order: 80, Fields: []option.Field{
		{Path: "conntrack.maxPerCore", Flag: "conntrack-max-per-core", Row: "CF-39", Effect: onLinux,
			Help: "limit of tracked connections for each CPU; 0 keeps the kernel's limit"},
		{Path: "conntrack.min", Flag: "conntrack-min", Row: "CF-39", Effect: onLinux,
			Help: "minimum limit of tracked connections, whatever the number of CPUs"},
		{Path: "conntrack.tcpEstablishedTimeout", Flag: "conntrack-tcp-timeout-established", Row: "CF-40",
			Effect: onLinux,
			Help:   "timeout of idle TCP connections in conntrack and mode userspace; 0 keeps the kernel's"},
		{Path: "conntrack.tcpCloseWaitTimeout", Flag: "conntrack-tcp-timeout-close-wait", Row: "CF-40", Effect: onLinux,
			Help: "timeout of TCP connections in CLOSE_WAIT; 0 keeps the kernel's"},
		{Path: "conntrack.tcpBeLiberal", Flag: "conntrack-tcp-be-liberal", Row: "CF-41", Effect: onLinux,
			Help: "accept packets outside a TCP connection's window"},
		{Path: "conntrack.udpTimeout", Flag: "conntrack-udp-timeout", Row: "CF-42", Effect: onLinux,
			Help: "timeout of UDP flows without a reply; 0 keeps the kernel's"},
		{Path: "conntrack.udpStreamTimeout", Flag: "conntrack-udp-timeout-stream", Row: "CF-42", Effect: onLinux,
			Help: "timeout of UDP flows with replies; 0 keeps the kernel's"},
	}}
}

// conntrack is CF-39 to CF-42.
func (o *Options) conntrack(r *option.Report) Conntrack {
	f := &o.file.Conntrack
	c := Conntrack{
		MaxPerCore: int(*f.MaxPerCore), Min: int(*f.Min), TCPBeLiberal: f.TCPBeLiberal,
		TCPEstablished: f.TCPEstablishedTimeout.Duration, TCPCloseWait: f.TCPCloseWaitTimeout.Duration,
		UDP: f.UDPTimeout.Duration, UDPStream: f.UDPStreamTimeout.Duration,
	}
	r.Within("conntrack.maxPerCore", *f.MaxPerCore, 0, 1<<31-1)
	r.Within("conntrack.min", *f.Min, 0, 1<<31-1)
	r.NotNegative("conntrack.tcpEstablishedTimeout", *f.TCPEstablishedTimeout)
	r.NotNegative("conntrack.tcpCloseWaitTimeout", *f.TCPCloseWaitTimeout)
	r.NotNegative("conntrack.udpTimeout", f.UDPTimeout)
	r.NotNegative("conntrack.udpStreamTimeout", f.UDPStreamTimeout)
	return c
}
