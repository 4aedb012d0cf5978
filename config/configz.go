package config

import "k8s.io/kube-proxy/config/v1alpha1"

// Configz returns the configuration for /configz: the object of the published type with its kind
// and version, as a file has it, with our fields beside its own (HT-24).
func (c *Config) Configz() (map[string]any, error) {
	root, err := c.file.root()
	if err != nil {
		return nil, err
	}
	root["apiVersion"], root["kind"] = v1alpha1.SchemeGroupVersion.String(), "KubeProxyConfiguration"
	return root, nil
}
