{{- define "kube-proxy.name" -}}
{{ .Values.fullnameOverride | default .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "kube-proxy.selector" -}}
app.kubernetes.io/name: kube-proxy
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "kube-proxy.labels" -}}
{{ include "kube-proxy.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "kube-proxy.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "kube-proxy.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "kube-proxy.image" -}}
{{- with .Values.image -}}
{{ if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag }}{{ end }}
{{- end }}
{{- end }}

{{- /* The folder of the kubeconfig in the containers, and its path. */ -}}
{{- define "kube-proxy.kubeconfigDir" -}}/etc/kube-proxy{{- end }}
{{- define "kube-proxy.kubeconfig" -}}
{{- with .Values.apiServer.kubeconfig -}}
{{- if .hostPath -}}{{ include "kube-proxy.kubeconfigDir" $ }}/kubeconfig{{- else if or .secret .configMap -}}{{ include "kube-proxy.kubeconfigDir" $ }}/{{ .key }}{{- end -}}
{{- end -}}
{{- end }}

{{- /* The configuration file, with the path of the kubeconfig. */ -}}
{{- define "kube-proxy.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $_ := set $config "apiVersion" "kubeproxy.config.k8s.io/v1alpha1" -}}
{{- $_ := set $config "kind" "KubeProxyConfiguration" -}}
{{- with include "kube-proxy.kubeconfig" . -}}
{{- $_ := set $config "clientConnection" (merge (dict "kubeconfig" .) (omit (get $config "clientConnection" | default dict) "kubeconfig")) -}}
{{- end -}}
{{ toYaml $config }}
{{- end }}

{{- /* With RollingUpdate each content has its own ConfigMap. */ -}}
{{- define "kube-proxy.configMap" -}}
{{ include "kube-proxy.name" . }}{{ if eq .Values.configUpdate "RollingUpdate" }}-{{ include "kube-proxy.config" . | sha256sum | trunc 8 }}{{ end }}
{{- end }}

{{- /* The host and port of an address such as 0.0.0.0:10256, [::]:10256, 10.0.0.1 or ::, as JSON. */ -}}
{{- define "kube-proxy.address" -}}
{{- $host := regexReplaceAll ":[0-9]+$" .address "" -}}
{{- $port := regexFind "[0-9]+$" (regexFind ":[0-9]+$" .address) -}}
{{- if and (regexMatch ":.*:" .address) (not (hasPrefix "[" .address)) -}}
{{- $host = .address -}}{{- $port = "" -}}
{{- end -}}
{{ dict "host" (trimAll "[]" $host) "port" (int ($port | default .port)) | toJson }}
{{- end }}

{{- define "kube-proxy.healthz" -}}
{{ include "kube-proxy.address" (dict "address" (get .Values.config "healthzBindAddress" | default "0.0.0.0:10256") "port" 10256) }}
{{- end }}

{{- define "kube-proxy.metrics" -}}
{{ include "kube-proxy.address" (dict "address" (get .Values.config "metricsBindAddress" | default "127.0.0.1:10249") "port" 10249) }}
{{- end }}

{{- /* Whether programs must load kernel modules; the kernel loads those of nftables itself. */ -}}
{{- define "kube-proxy.modules" -}}
{{- if and .Values.init.enabled (ne (get .Values.config "mode" | default "") "nftables") -}}true{{- end -}}
{{- end }}

{{- /* Capabilities: iptables programs read ipset names, and the legacy back end its rules, by a raw socket. */ -}}
{{- define "kube-proxy.capabilities" -}}
{{- $mode := get .Values.config "mode" | default "iptables" -}}
{{- /* Mode ebpf: SYS_ADMIN enters network namespaces and names programs of others, SYS_RESOURCE raises RLIMIT_MEMLOCK before 5.11. */ -}}
{{- $own := dict "iptables" (list "NET_RAW") "ipvs" (list "NET_RAW") "ebpf" (list "BPF" "PERFMON" "SYS_ADMIN" "SYS_RESOURCE") -}}
{{- concat (list "NET_ADMIN") (get $own $mode | default list) .Values.extraCapabilities | uniq | toYaml -}}
{{- end }}

{{- /* A container's environment. */ -}}
{{- define "kube-proxy.env" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- with .Values.apiServer.host }}
- name: KUBERNETES_SERVICE_HOST
  value: {{ . | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ $.Values.apiServer.port | quote }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The credentials for the API server: a kubeconfig, or the token. */ -}}
{{- define "kube-proxy.credentials" -}}
{{- with .Values.apiServer.kubeconfig }}
{{- if .hostPath }}
- name: kubeconfig
  mountPath: {{ include "kube-proxy.kubeconfig" $ }}
  readOnly: true
{{- else if or .secret .configMap }}
- name: kubeconfig
  mountPath: {{ include "kube-proxy.kubeconfigDir" $ }}
  readOnly: true
{{- end }}
{{- end }}
{{- if .Values.apiServer.host }}
- name: token
  mountPath: /var/run/secrets/kubernetes.io/serviceaccount
  readOnly: true
{{- end }}
{{- end }}

{{- /* All other mounts that both containers need. */ -}}
{{- define "kube-proxy.hostMounts" -}}
- name: config
  mountPath: /var/lib/kube-proxy
  readOnly: true
- name: xtables-lock
  mountPath: /run/xtables.lock
{{- if eq (get .Values.config "mode" | default "") "ebpf" }}
{{ include "kube-proxy.programs" . }}
# To end sockets of pods whose endpoint is gone.
- name: netns
  mountPath: /run/netns
  mountPropagation: HostToContainer
  readOnly: true
{{- end }}
{{- end }}

{{- /* Where eBPF programs are pinned and attached. */ -}}
{{- define "kube-proxy.programs" -}}
{{- $ebpf := get .Values.config "ebpf" | default dict -}}
- name: bpffs
  mountPath: {{ get $ebpf "bpffs" | default "/sys/fs/bpf" | quote }}
- name: cgroup
  mountPath: {{ get $ebpf "cgroup" | default "/run/cgroup" | quote }}
  readOnly: true
{{- end }}

{{- /* Checks beyond the schema. */ -}}
{{- define "kube-proxy.check" -}}
{{- $kubeconfigs := compact (list .Values.apiServer.kubeconfig.hostPath .Values.apiServer.kubeconfig.secret .Values.apiServer.kubeconfig.configMap) -}}
{{- if not (or .Values.apiServer.host $kubeconfigs) -}}
{{- fail "apiServer.host: missing: set the name or address at which every node reaches the API server without a Service, or set one of apiServer.kubeconfig.hostPath, secret and configMap" -}}
{{- end -}}
{{- if gt (len $kubeconfigs) 1 -}}
{{- fail (printf "apiServer.kubeconfig: %s: only one of hostPath, secret and configMap may be set" (join ", " $kubeconfigs)) -}}
{{- end -}}
{{- if and .Values.apiServer.host $kubeconfigs -}}
{{- fail "apiServer.host: has no effect together with apiServer.kubeconfig, which names the API server: remove one of them" -}}
{{- end -}}
{{- if not (or .Values.image.tag .Values.image.digest) -}}
{{- fail "image.tag: missing: set the tag that `make image` printed or that you chose, or image.digest" -}}
{{- end -}}
{{- if get (get .Values.config "clientConnection" | default dict) "kubeconfig" -}}
{{- fail "config.clientConnection.kubeconfig: the container does not have that file: remove the field, and set apiServer.kubeconfig to the source of a kubeconfig, or apiServer.host" -}}
{{- end -}}
{{- if eq (get .Values.config "mode" | default "") "kernelspace" -}}
{{- fail "config.mode: kernelspace is for Windows nodes: set windows.enabled, and see docs/windows.md" -}}
{{- end -}}
{{- if and (has (get .Values.config "mode" | default "") (list "iptables" "ipvs")) (hasSuffix "-minimal" .Values.image.tag) (not .Values.image.digest) -}}
{{- fail (printf "config.mode: %s: the image %s has no programs of iptables, which this mode runs: use the tag without -minimal, or mode nftables" .Values.config.mode .Values.image.tag) -}}
{{- end -}}
{{- if has (get .Values.config "detectLocalMode" | default "ClusterCIDR") (list "ClusterCIDR") -}}
{{- range splitList "," (get .Values.config "clusterCIDR" | default "") -}}
{{- if not (or (regexMatch "^ *[0-9A-Fa-f.:]+/[0-9]+ *$" .) (empty $.Values.config.clusterCIDR)) -}}
{{- fail (printf "config.clusterCIDR: %q is no CIDR: want the pod network, such as 10.244.0.0/16, or one for each IP family, separated by a comma" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with get .Values.config "snapshot" -}}
{{- if or (not (regexMatch "^(/[^/]+){4,}$" .)) (eq (dir .) "/var/lib/kube-proxy") -}}
{{- fail (printf "config.snapshot: %s: want a directory whose parent only the proxy uses, such as /var/lib/kube-proxy-state/snapshot: the chart mounts the parent from the node" .) -}}
{{- end -}}
{{- end -}}
{{- if eq (get .Values.config "healthzBindAddress" | default "") "none" -}}
{{- fail "config.healthzBindAddress: none: without the health server pods are never ready, and rollouts stop" -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled (regexMatch "^(none$|127\\.|\\[?::1\\]?|localhost)" (get (include "kube-proxy.metrics" . | fromJson) "host")) -}}
{{- fail "config.metricsBindAddress: serviceMonitor.enabled is true, but Prometheus cannot reach a loopback address or none: set it, for example to 0.0.0.0:10249" -}}
{{- end -}}
{{- end }}

{{- /* The host of probes: loopback, which no Service can claim, unless the server listens elsewhere. */ -}}
{{- define "kube-proxy.probeHost" -}}
host: {{ get (dict "" "127.0.0.1" "0.0.0.0" "127.0.0.1" "::" "::1") .host | default .host | quote }}
{{- end }}

{{- define "kube-proxy.windowsSelector" -}}
app.kubernetes.io/name: kube-proxy-windows
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "kube-proxy.windowsLabels" -}}
{{ merge (include "kube-proxy.windowsSelector" . | fromYaml) (include "kube-proxy.labels" . | fromYaml) | toYaml }}
{{- end }}

{{- define "kube-proxy.windowsMounts" -}}
{{- if not .Values.windows.configFile }}
- name: config
  mountPath: /var/lib/kube-proxy
  readOnly: true
{{- end }}
{{- if or .Values.apiServer.kubeconfig.secret .Values.apiServer.kubeconfig.configMap }}
- name: kubeconfig
  mountPath: {{ include "kube-proxy.kubeconfigDir" . }}
  readOnly: true
{{- end }}
{{- end }}

{{- define "kube-proxy.checkWindows" -}}
{{- $kubeconfig := get (get .Values.windows.config "clientConnection" | default dict) "kubeconfig" -}}
{{- if and .Values.apiServer.kubeconfig.hostPath (not $kubeconfig) (not .Values.windows.configFile) -}}
{{- fail "windows.config.clientConnection.kubeconfig: missing: apiServer.kubeconfig.hostPath is a file of Linux nodes: set the file of Windows nodes" -}}
{{- end -}}
{{- if and $kubeconfig (not .Values.apiServer.kubeconfig.hostPath) -}}
{{- fail "windows.config.clientConnection.kubeconfig: apiServer already names the API server: remove one of them" -}}
{{- end -}}
{{- if not (has (get .Values.windows.config "mode" | default "kernelspace") (list "kernelspace" "userspace")) -}}
{{- fail (printf "windows.config.mode: %s: Windows has the modes kernelspace and userspace" .Values.windows.config.mode) -}}
{{- end -}}
{{- end }}
