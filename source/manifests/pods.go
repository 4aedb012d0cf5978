package manifests

import (
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"go.yaml.in/yaml/v3"

	"kube-proxy/cluster"
	"kube-proxy/source/convert"
)

// podNamed has the parts of a document that may give a Pod's address: a Pod itself, or a slice with
// the Pod as an endpoint.
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

// Pods returns the addresses of a Pod in the folder at the root of fsys: from the Pod, or from the
// EndpointSlices with it as an endpoint. Without a namespace it returns those of all Pods of that
// name. Malformed files are ignored; no addresses means that no file names the Pod. The error
// concerns the folder.
func Pods(fsys fs.FS, pod cluster.Name) (map[cluster.Name][]netip.Addr, error) {
	out := map[cluster.Name][]netip.Addr{}
	err := documents(fsys, func(node *yaml.Node) {
		var doc podNamed
		_ = node.Decode(&doc) // another form is ignored
		doc.addrs(pod, out)
	})
	return out, err
}

// documents calls f for each YAML document of the folder, up to the first malformed one of a file.
func documents(fsys fs.FS, f func(*yaml.Node)) error {
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := fs.Stat(fsys, e.Name())
		if err != nil || !isManifest(e.Name()) || !info.Mode().IsRegular() || info.Size() > maxFile {
			continue
		}
		data, err := fs.ReadFile(fsys, e.Name())
		if err != nil {
			return fmt.Errorf("%s: %w", e.Name(), err)
		}
		for dec := yaml.NewDecoder(bytes.NewReader(data)); ; {
			var node yaml.Node
			if dec.Decode(&node) != nil { // its end, or malformed from here on
				break
			}
			f(&node)
		}
	}
	return nil
}

// addrs adds the addresses of the Pods of the name, each once.
func (d *podNamed) addrs(pod cluster.Name, out map[cluster.Name][]netip.Addr) {
	add := func(namespace, name string, texts ...string) {
		if name != pod.Name || pod.Namespace != "" && namespace != pod.Namespace {
			return
		}
		full := cluster.Name{Namespace: namespace, Name: name}
		for _, text := range texts {
			if a, ok := convert.ParseAddr(text); ok && !slices.Contains(out[full], a) {
				out[full] = append(out[full], a)
			}
		}
	}
	namespace := cmp.Or(d.Metadata.Namespace, "default")
	if d.Kind == "Pod" {
		add(namespace, d.Metadata.Name, d.Status.PodIP)
		for _, ip := range d.Status.PodIPs {
			add(namespace, d.Metadata.Name, ip.IP)
		}
	}
	for _, e := range d.Endpoints {
		if ref := e.TargetRef; ref.Kind == "Pod" {
			add(cmp.Or(ref.Namespace, namespace), ref.Name, e.Addresses...)
		}
	}
	for i := range d.Items {
		d.Items[i].addrs(pod, out)
	}
}
