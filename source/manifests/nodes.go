package manifests

import (
	"io/fs"
	"net/netip"

	"go.yaml.in/yaml/v3"
)

// nodeNamed has the parts of a document that give a Node's addresses.
type nodeNamed struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		PodCIDR  string   `yaml:"podCIDR"`
		PodCIDRs []string `yaml:"podCIDRs"`
	}
	Status struct {
		Addresses []struct{ Type, Address string }
	}
	Items []nodeNamed
}

// Node returns the internal addresses and the pod CIDRs of a Node in the folder at the root of
// fsys; found is false if no file has it. Malformed files and values are ignored. The error
// concerns the folder.
func Node(fsys fs.FS, name string) (addrs []netip.Addr, pods []netip.Prefix, found bool, err error) {
	var visit func(*nodeNamed)
	visit = func(d *nodeNamed) {
		if d.Kind == "Node" && d.Metadata.Name == name {
			found = true
			for _, a := range d.Status.Addresses {
				if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == "InternalIP" {
					addrs = append(addrs, ip.Unmap())
				}
			}
			for _, text := range append(d.Spec.PodCIDRs, d.Spec.PodCIDR) {
				if p, err := netip.ParsePrefix(text); err == nil {
					pods = append(pods, p.Masked())
				}
			}
		}
		for i := range d.Items {
			visit(&d.Items[i])
		}
	}
	err = documents(fsys, func(node *yaml.Node) {
		var doc nodeNamed
		_ = node.Decode(&doc) // another form is ignored
		visit(&doc)
	})
	return addrs, pods, found, err
}
