package manifests

import (
	"bytes"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"go.yaml.in/yaml/v3"

	"kube-proxy/cluster"
)

// podNamed is what of a document may say where a Pod is: a Pod itself, or a slice with an endpoint that it is.
type podNamed struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Status   struct {
		PodIP  string                `yaml:"podIP"`
		PodIPs []struct{ IP string } `yaml:"podIPs"`
	}
	Endpoints []struct {
		Addresses []string
		TargetRef struct{ Kind, Name, Namespace string } `yaml:"targetRef"`
	}
	Items []podNamed
}

// PodAddrs returns the addresses of a Pod, as the folder at the root of fsys has them: by the Pod, or by the EndpointSlices that it is an endpoint
// of. What is malformed says nothing; none means that no file names the Pod. The error is about the folder.
func PodAddrs(fsys fs.FS, pod cluster.Name) ([]netip.Addr, error) {
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, e := range entries {
		info, err := fs.Stat(fsys, e.Name())
		if err != nil || !isManifest(e.Name()) || !info.Mode().IsRegular() || info.Size() > mostFile {
			continue
		}
		data, err := fs.ReadFile(fsys, e.Name())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name(), err)
		}
		for dec := yaml.NewDecoder(bytes.NewReader(data)); ; {
			var node yaml.Node
			if dec.Decode(&node) != nil { // its end, or malformed from here on
				break
			}
			var doc podNamed
			_ = node.Decode(&doc) // what has another form says nothing
			out = doc.addrs(pod, out)
		}
	}
	return out, nil
}

// addrs appends the Pod's addresses, each once.
func (d *podNamed) addrs(pod cluster.Name, out []netip.Addr) []netip.Addr {
	namespace := d.Metadata.Namespace
	if namespace == "" {
		namespace = "default"
	}
	var texts []string
	if d.Kind == "Pod" && d.Metadata.Name == pod.Name && namespace == pod.Namespace {
		texts = append(texts, d.Status.PodIP)
		for _, ip := range d.Status.PodIPs {
			texts = append(texts, ip.IP)
		}
	}
	for _, e := range d.Endpoints {
		if ref := e.TargetRef; ref.Kind == "Pod" && ref.Name == pod.Name && (ref.Namespace == pod.Namespace || ref.Namespace == "" && namespace == pod.Namespace) {
			texts = append(texts, e.Addresses...)
		}
	}
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil && !slices.Contains(out, a.Unmap()) {
			out = append(out, a.Unmap())
		}
	}
	for i := range d.Items {
		out = d.Items[i].addrs(pod, out)
	}
	return out
}
