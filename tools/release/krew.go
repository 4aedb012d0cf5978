package main

import (
	"slices"
	"strings"
	"text/template"
)

// manifest is krew's format, version v1alpha2.
var manifest = template.Must(template.New("").Parse(`apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: svcproxy
spec:
  version: v{{.Version}}
  shortDescription: Ask the kube-proxy of each node about Services
  description: |
    Follows a packet from a Pod to a Service on the Pod's node, shows the state of the proxies of all
    nodes with problems first, and serves their status page. It needs to list pods and to create
    pods/exec in the namespace of kube-proxy, and changes nothing.
  caveats: |
    The cluster must run this project's kube-proxy: the plugin runs "kube-proxy connect" in its pods.
  platforms:
{{- range .Plugins}}
  - selector:
      matchLabels: {os: {{.OS}}, arch: {{.Arch}}}
    uri: {{$.URL}}/{{.Archive}}
    sha256: {{.SHA256}}
    bin: {{.Bin}}
{{- end}}
`))

// krew writes the manifest of the plugin, which names its archives.
func (r *release) krew(platforms []platform) error {
	type plugin struct{ OS, Arch, Archive, SHA256, Bin string }
	var plugins []plugin
	for _, p := range platforms {
		if p.program != "kubectl-svcproxy" {
			continue
		}
		name := r.archive(p)
		at := slices.IndexFunc(r.files, func(f file) bool { return f.name == name })
		plugins = append(plugins, plugin{p.os, p.arch, name, sum(r.files[at].body), p.file()})
	}
	var text strings.Builder
	err := manifest.Execute(&text, struct {
		Version, URL string
		Plugins      []plugin
	}{r.version, strings.TrimSuffix(r.url, "/"), plugins})
	if err != nil {
		return err
	}
	return r.write("svcproxy.yaml", []byte(text.String()))
}
