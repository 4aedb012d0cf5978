package config

// The flags, group by group. Where an entry names a field, help and effect are those of the field.

func proxyFlags(o *Options) []flag {
	f := &o.file
	return []flag{
		{name: "proxy-mode", group: groupProxy, field: "mode", value: once(text(&f.Mode))},
		{name: "config", group: groupProxy, value: text(&o.ConfigFile),
			help: "`file` with a KubeProxyConfiguration, YAML or JSON; flags that stand for its fields are then ignored"},
		{name: "write-config-to", group: groupProxy, value: text(&o.WriteConfigTo),
			help: "write the configuration, with its defaults, to the `file`, and exit"},
		{name: "manifests", group: groupProxy, value: text(&o.Manifests),
			help: "`folder` of YAML or JSON files with Services and EndpointSlices to serve instead of an API server's; watched"},
		{name: "cluster-cidr", group: groupProxy, field: "clusterCIDR", value: text(&f.ClusterCIDR)},
		{name: "detect-local-mode", group: groupProxy, field: "detectLocalMode", value: text(&f.DetectLocalMode)},
		{name: "pod-bridge-interface", group: groupProxy, field: "detectLocal.bridgeInterface", value: text(&f.DetectLocal.BridgeInterface)},
		{name: "pod-interface-name-prefix", group: groupProxy, field: "detectLocal.interfaceNamePrefix", value: text(&f.DetectLocal.InterfaceNamePrefix)},
		{name: "nodeport-addresses", group: groupProxy, field: "nodePortAddresses", value: list(&f.NodePortAddresses)},
		{name: "external-ip-cidrs", group: groupProxy, field: "externalIPCIDRs", value: list(&f.ExternalIPCIDRs)},
		{name: "max-namespace-objects", group: groupProxy, field: "maxNamespaceObjects", value: optional(&f.MaxNamespaceObjects)},
		{name: "bind-address", group: groupProxy, field: "bindAddress", value: text(&f.BindAddress)},
		{name: "masquerade-all", group: groupProxy, field: "iptables.masqueradeAll", value: boolean(&f.IPTables.MasqueradeAll)},
		{name: "feature-gates", group: groupProxy, field: "featureGates", value: gateMap(&f.FeatureGates)},
		{name: "oom-score-adj", group: groupProxy, field: "oomScoreAdj", value: optional(&f.OOMScoreAdj)},
		{name: "cleanup", group: groupProxy, value: boolean(&o.Cleanup),
			help: "remove the rules of all modes, and exit"},
		{name: "init-only", group: groupProxy, effect: onLinux, value: boolean(&o.InitOnly),
			help: "make the settings of the kernel that need full privileges, and exit"},
		{name: "version", group: groupProxy, value: text(&o.Version), alone: "true",
			help: "print the version and exit; --version=raw prints all that is known of the build; a version such as v1.36.0 is reported in place of ours"},
	}
}

func nodeFlags(o *Options) []flag {
	f := &o.file
	return []flag{
		{name: "kubeconfig", group: groupNode, field: "clientConnection.kubeconfig", value: text(&f.ClientConnection.Kubeconfig)},
		{name: "master", group: groupNode, value: text(&o.Master),
			help: "`URL` of the API server; beats the one in the kubeconfig file"},
		{name: "hostname-override", group: groupNode, field: "hostnameOverride", wins: true, value: text(&f.HostnameOverride)},
		{name: "kube-api-content-type", group: groupNode, field: "clientConnection.contentType", value: text(&f.ClientConnection.ContentType)},
		{name: "kube-api-qps", group: groupNode, field: "clientConnection.qps", value: float(&f.ClientConnection.QPS)},
		{name: "kube-api-burst", group: groupNode, field: "clientConnection.burst", value: number(&f.ClientConnection.Burst)},
		{name: "config-sync-period", group: groupNode, field: "configSyncPeriod", value: duration(&f.ConfigSyncPeriod)},
		{name: "machine-id-file", group: groupNode, value: text(&o.machineIDFiles),
			help: "`files`, with commas between; the first that is there holds the machine's id, which the log and /statusz tell"},
		{name: "boot-id-file", group: groupNode, value: text(&o.bootIDFiles),
			help: "`files`, with commas between; the first that is there holds the id of the machine's present boot, which the log and /statusz tell"},
	}
}

func serverFlags(o *Options) []flag {
	f := &o.file
	return []flag{
		{name: "healthz-bind-address", group: groupServers, field: "healthzBindAddress", value: text(&f.HealthzBindAddress)},
		{name: "metrics-bind-address", group: groupServers, field: "metricsBindAddress", value: text(&f.MetricsBindAddress)},
		{name: "bind-address-hard-fail", group: groupServers, field: "bindAddressHardFail", value: boolean(&f.BindAddressHardFail)},
		{name: "profiling", group: groupServers, field: "enableProfiling", value: boolean(&f.EnableProfiling)},
		{name: "admin-socket", group: groupServers, field: "adminSocket", value: optionalText(&f.AdminSocket)},
		{name: "service-metrics", group: groupServers, field: "serviceMetrics", value: number(&f.ServiceMetrics)},
		{name: "show-hidden-metrics-for-version", group: groupServers, field: "showHiddenMetricsForVersion", value: text(&f.ShowHiddenMetricsForVersion)},
	}
}

func nftablesFlags(o *Options) []flag {
	f := &o.file.NFTables
	return []flag{
		{name: "nftables-min-sync-period", group: groupNFTables, field: "nftables.minSyncPeriod", value: duration(&f.MinSyncPeriod)},
		{name: "nftables-sync-period", group: groupNFTables, field: "nftables.syncPeriod", value: duration(&f.SyncPeriod)},
		{name: "nftables-masquerade-bit", group: groupNFTables, field: "nftables.masqueradeBit", value: optional(&f.MasqueradeBit)},
		{name: "nftables-masquerade-all", group: groupNFTables, field: "nftables.masqueradeAll", value: boolean(&f.MasqueradeAll)},
		{name: "nftables-localhost-nodeports", group: groupNFTables, effect: later, value: boolean(&o.nftLocalhost),
			help: "NodePorts answer on 127.0.0.1 too"},
	}
}

func iptablesFlags(o *Options) []flag {
	f := &o.file.IPTables
	return []flag{
		{name: "iptables-min-sync-period", group: groupIPTables, field: "iptables.minSyncPeriod", value: duration(&f.MinSyncPeriod)},
		{name: "iptables-sync-period", group: groupIPTables, field: "iptables.syncPeriod", value: duration(&f.SyncPeriod)},
		{name: "iptables-masquerade-bit", group: groupIPTables, field: "iptables.masqueradeBit", value: optional(&f.MasqueradeBit)},
		{name: "iptables-localhost-nodeports", group: groupIPTables, field: "iptables.localhostNodePorts", value: optionalBool(&f.LocalhostNodePorts)},
	}
}

func ipvsFlags(o *Options) []flag {
	f := &o.file.IPVS
	return []flag{
		{name: "ipvs-scheduler", group: groupIPVS, field: "ipvs.scheduler", value: text(&f.Scheduler)},
		{name: "ipvs-min-sync-period", group: groupIPVS, field: "ipvs.minSyncPeriod", value: duration(&f.MinSyncPeriod)},
		{name: "ipvs-sync-period", group: groupIPVS, field: "ipvs.syncPeriod", value: duration(&f.SyncPeriod)},
		{name: "ipvs-exclude-cidrs", group: groupIPVS, field: "ipvs.excludeCIDRs", value: list(&f.ExcludeCIDRs)},
		{name: "ipvs-strict-arp", group: groupIPVS, field: "ipvs.strictARP", value: boolean(&f.StrictARP)},
		{name: "ipvs-tcp-timeout", group: groupIPVS, field: "ipvs.tcpTimeout", value: duration(&f.TCPTimeout)},
		{name: "ipvs-tcpfin-timeout", group: groupIPVS, field: "ipvs.tcpFinTimeout", value: duration(&f.TCPFinTimeout)},
		{name: "ipvs-udp-timeout", group: groupIPVS, field: "ipvs.udpTimeout", value: duration(&f.UDPTimeout)},
	}
}

// ebpfFlags have no fields: the published type knows no such mode.
func ebpfFlags(o *Options) []flag {
	f, in := &o.ebpf, "ebpf"
	return []flag{
		{name: "ebpf-min-sync-period", group: groupEBPF, block: in, value: duration(&f.minSyncPeriod),
			help: "least time between two writes to the kernel"},
		{name: "ebpf-sync-period", group: groupEBPF, block: in, value: duration(&f.syncPeriod),
			help: "time between two full comparisons with the kernel; 0 means some minutes"},
		{name: "ebpf-masquerade-bit", group: groupEBPF, block: in, value: number(&f.masqueradeBit),
			help: "bit of the packet mark that asks for masquerading, 0 to 31"},
		{name: "ebpf-masquerade-all", group: groupEBPF, block: in, value: boolean(&f.masqueradeAll),
			help: "masquerade every connection to a cluster IP"},
		{name: "ebpf-localhost-nodeports", group: groupEBPF, block: in, value: boolean(&f.localhostNodePorts),
			help: "NodePorts answer on 127.0.0.1 too"},
	}
}

func userspaceFlags(o *Options) []flag {
	return []flag{
		{name: "proxy-port-range", group: groupUserspace, field: "portRange", value: text(&o.file.PortRange)},
		{name: "udp-timeout", group: groupUserspace, field: "udpIdleTimeout", value: duration(&o.file.UDPIdleTimeout)},
		{name: "userspace-termination-grace-period", group: groupUserspace, field: "userspace.terminationGracePeriod",
			value: duration(&o.file.Userspace.TerminationGracePeriod)},
		{name: "userspace-drain-timeout", group: groupUserspace, field: "userspace.drainTimeout", value: duration(&o.file.Userspace.DrainTimeout)},
		{name: "userspace-node-endpoints", group: groupUserspace, field: "userspace.nodeEndpoints", value: optionalBool(&o.file.Userspace.NodeEndpoints)},
		{name: "userspace-fallback", group: groupUserspace, field: "userspaceFallback", value: optionalBool(&o.file.UserspaceFallback)},
	}
}

func windowsFlags(o *Options) []flag {
	f := &o.file.Winkernel
	return []flag{
		{name: "windows-service", group: groupWindows, field: "windowsRunAsService", value: boolean(&o.file.WindowsRunAsService)},
		{name: "network-name", group: groupWindows, field: "winkernel.networkName", value: text(&f.NetworkName)},
		{name: "source-vip", group: groupWindows, field: "winkernel.sourceVip", value: text(&f.SourceVip)},
		{name: "enable-dsr", group: groupWindows, field: "winkernel.enableDSR", value: boolean(&f.EnableDSR)},
		{name: "root-hnsendpoint-name", group: groupWindows, field: "winkernel.rootHnsEndpointName", value: text(&f.RootHnsEndpointName)},
		{name: "forward-healthcheck-vip", group: groupWindows, field: "winkernel.forwardHealthCheckVip", value: boolean(&f.ForwardHealthCheckVip)},
		{name: "windows-ignore-source-ranges", group: groupWindows, field: "windowsIgnoreSourceRanges", value: boolean(&o.file.WindowsIgnoreSourceRanges)},
	}
}

func conntrackFlags(o *Options) []flag {
	f := &o.file.Conntrack
	return []flag{
		{name: "conntrack-max-per-core", group: groupConntrack, field: "conntrack.maxPerCore", value: optional(&f.MaxPerCore)},
		{name: "conntrack-min", group: groupConntrack, field: "conntrack.min", value: optional(&f.Min)},
		{name: "conntrack-tcp-timeout-established", group: groupConntrack, field: "conntrack.tcpEstablishedTimeout", value: optionalDuration(&f.TCPEstablishedTimeout)},
		{name: "conntrack-tcp-timeout-close-wait", group: groupConntrack, field: "conntrack.tcpCloseWaitTimeout", value: optionalDuration(&f.TCPCloseWaitTimeout)},
		{name: "conntrack-tcp-be-liberal", group: groupConntrack, field: "conntrack.tcpBeLiberal", value: boolean(&f.TCPBeLiberal)},
		{name: "conntrack-udp-timeout", group: groupConntrack, field: "conntrack.udpTimeout", value: duration(&f.UDPTimeout)},
		{name: "conntrack-udp-timeout-stream", group: groupConntrack, field: "conntrack.udpStreamTimeout", value: duration(&f.UDPStreamTimeout)},
	}
}

func loggingFlags(o *Options) []flag {
	f, k := &o.file.Logging, &o.klog
	return []flag{
		{name: "v", short: "v", group: groupLogging, field: "logging.verbosity", wins: true, value: number(&f.Verbosity)},
		{name: "vmodule", group: groupLogging, field: "logging.vmodule", wins: true, value: vmodule(&f.VModule)},
		{name: "logging-format", group: groupLogging, field: "logging.format", wins: true, value: text(&f.Format)},
		{name: "log-flush-frequency", group: groupLogging, field: "logging.flushFrequency", wins: true, value: duration(&f.FlushFrequency.Duration)},
		{name: "log-text-split-stream", group: groupLogging, field: "logging.options.text.splitStream", wins: true, value: boolean(&f.Options.Text.SplitStream)},
		{name: "log-text-info-buffer-size", group: groupLogging, field: "logging.options.text.infoBufferSize", wins: true, value: quantity(&f.Options.Text.InfoBufferSize)},
		{name: "log-json-split-stream", group: groupLogging, field: "logging.options.json.splitStream", wins: true, value: boolean(&f.Options.JSON.SplitStream)},
		{name: "log-json-info-buffer-size", group: groupLogging, field: "logging.options.json.infoBufferSize", wins: true, value: quantity(&f.Options.JSON.InfoBufferSize)},

		{name: "logtostderr", group: groupLogging, value: boolean(&k.ToStderr),
			help: "log to stderr; say false to log to files"},
		{name: "alsologtostderr", group: groupLogging, value: boolean(&k.AlsoToStderr),
			help: "log to stderr too when logging to files"},
		{name: "stderrthreshold", group: groupLogging, value: severity(&k.StderrThreshold),
			help: "least `severity` that goes to stderr too when logging to files: 0 or INFO, 1 or WARNING, 2 or ERROR, 3 or FATAL"},
		{name: "log-dir", group: groupLogging, value: text(&k.Dir),
			help: "`folder` for log files, one for each severity; the folder for temporary files if not given"},
		{name: "log-file", group: groupLogging, value: text(&k.File),
			help: "one `file` for all severities, instead of those in --log-dir"},
		{name: "log-file-max-size", group: groupLogging, value: number(&k.FileMaxMB),
			help: "size in `MB` at which --log-file is emptied and begun anew; 0 means no limit"},
		{name: "one-output", group: groupLogging, value: boolean(&k.OneOutput),
			help: "write a line only to the file of its own severity, not to those of the lower ones too"},
		{name: "skip-headers", group: groupLogging, value: boolean(&k.SkipHeaders),
			help: "leave out the header of each line: severity, time, process, source"},
		{name: "skip-log-headers", group: groupLogging, value: boolean(&k.SkipLogHeaders),
			help: "leave out the lines that a log file begins with"},
		{name: "add-dir-header", group: groupLogging, value: boolean(&k.AddDirHeader),
			help: "name the folder of the source file in the header"},
		{name: "log-backtrace-at", group: groupLogging, value: text(&k.BacktraceAt),
			help: "`file:line` of the source whose log lines are followed by a stack trace"},
	}
}
