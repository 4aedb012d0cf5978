package config

import (
	"fmt"
	"strings"
	"time"

	"kube-proxy/config/option"
)

// API configures the connection to the API server. Without Kubeconfig and Master the pod's own
// credentials are used.
type API struct {
	Kubeconfig string
	Master     string
	// QPS is requests a second, negative for no limit; Burst is the number of simultaneous ones.
	QPS   float32
	Burst int
	// ContentType is the media type of requests, AcceptContentTypes those of responses; "" for the
	// client's default.
	ContentType, AcceptContentTypes string
}

// nodeFlags have paths with commas between.
type nodeFlags struct{ bootIDFiles, machineIDFiles string }

const protobuf = "application/vnd.kubernetes.protobuf"

// watched is the reason why configSyncPeriod has no effect: in other proxies it processes known
// objects again, which changes nothing.
const watched = "the API server is always watched"

func (o *Options) nodeSection() option.Section {
	o.orUsualClient()
	o.file.ConfigSyncPeriod.Duration = 15 * time.Minute
	o.bootIDFiles, o.machineIDFiles = "/proc/sys/kernel/random/boot_id", "/etc/machine-id,/var/lib/dbus/machine-id"
	return option.Section{Title: "Node and API server", Order: 20, Fields: []option.Field{
		{Path: "clientConnection.kubeconfig", Flag: "kubeconfig", Row: "CF-02", Restart: client,
			Help: "`file` with the API server's address and credentials; without it and --master, the pod's service " +
				"account is used"},
		{At: &o.Master, Flag: "master", Help: "`URL` of the API server; overrides the kubeconfig file"},
		{Path: "clientConnection.acceptContentTypes", Row: "CF-03", Restart: client,
			Help: "accepted media `types` of responses, comma-separated; default contentType and JSON"},
		{Path: "hostnameOverride", Flag: "hostname-override", Row: "CF-12", Restart: "a process serves one Node",
			Wins: true, Help: "`name` of this node; default $NODE_NAME, then the host name"},
		{Path: "clientConnection.contentType", Flag: "kube-api-content-type", Row: "CF-04", Restart: client,
			Help: "media `type` of requests to the API server: protobuf or JSON"},
		{Path: "clientConnection.qps", Flag: "kube-api-qps", Row: "CF-05", Restart: client,
			Help: "requests to the API server per second; negative means no limit"},
		{Path: "clientConnection.burst", Flag: "kube-api-burst", Row: "CF-06", Restart: client,
			Help: "burst of requests to the API server"},
		{Path: "configSyncPeriod", Flag: "config-sync-period", Row: "CF-43", Effect: option.Effect{Gone: watched},
			Help: "without effect: " + watched},
		{At: &o.machineIDFiles, Flag: "machine-id-file",
			Help: "`files`, comma-separated; the first one that exists has the machine ID for the log and /statusz"},
		{At: &o.bootIDFiles, Flag: "boot-id-file",
			Help: "`files`, comma-separated; the first one that exists has the boot ID for the log and /statusz"},
	}}
}

// orUsualClient sets missing values to their defaults: the client treats 0 as "not given", and so
// does a file.
func (o *Options) orUsualClient() {
	c := &o.file.ClientConnection
	orDefault(&c.QPS, 5)
	orDefault(&c.Burst, 10)
	orDefault(&c.ContentType, protobuf)
}

// api is CF-02 to CF-06, and the source of Services.
func (o *Options) api() API {
	o.orUsualClient()
	f := o.file.ClientConnection
	a := API{Kubeconfig: f.Kubeconfig, Master: o.Master, QPS: f.QPS, Burst: int(f.Burst), ContentType: f.ContentType,
		AcceptContentTypes: f.AcceptContentTypes}
	if a.Burst < 0 {
		o.wrong("clientConnection.burst", fmt.Sprint(a.Burst), "want 0 or more")
	}
	if o.Manifests == "" {
		return a
	}
	if a.Master != "" {
		o.problem("--manifests", o.Manifests, "want --manifests or --master, not both")
	}
	switch {
	case a.Kubeconfig == "":
	case o.loaded:
		o.warn("clientConnection.kubeconfig is ignored because --manifests is given")
		a.Kubeconfig = ""
	default:
		o.problem("--manifests", o.Manifests, "want --manifests or --kubeconfig, not both")
	}
	return a
}

// identity returns the content of the first existing file in a list of paths, separated by commas.
func (o *Options) identity(flag, files string) string {
	for name := range strings.SplitSeq(files, ",") {
		if data, err := o.readFile(strings.TrimSpace(name)); err == nil {
			return strings.TrimSpace(string(data))
		}
	}
	if o.changed(flag) {
		o.warn("--%s %q: cannot read any of these files", flag, files)
	}
	return ""
}

// nodeName is CF-12: without an override it is the hostname.
func (o *Options) nodeName() string {
	override := o.file.HostnameOverride
	if override == "" {
		override = o.getenv("NODE_NAME")
	}
	if strings.TrimSpace(override) == "" && o.file.HostnameOverride == "" {
		name, err := o.hostname()
		if err != nil {
			o.problem("--hostname-override", "", "not given, and reading the host name failed: "+err.Error())
			return ""
		}
		override = name
	}
	name := strings.ToLower(strings.TrimSpace(override))
	if name == "" {
		o.wrong("hostnameOverride", override, "empty hostname-override is invalid")
	}
	return name
}
