package controlplane

import (
	"fmt"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Kubeconfig writes NAME.kubeconfig below Config.Dir for the user and returns its path. edit, if
// not nil, may change it first; its only cluster and its only user are called "e2e".
func (c *ControlPlane) Kubeconfig(name, user string, edit func(*api.Config)) (string, error) {
	config := api.NewConfig()
	config.Clusters["e2e"] = &api.Cluster{Server: c.URL(), CertificateAuthorityData: c.cert}
	config.AuthInfos["e2e"] = &api.AuthInfo{Token: token(user)}
	config.Contexts["e2e"] = &api.Context{Cluster: "e2e", AuthInfo: "e2e"}
	config.CurrentContext = "e2e"
	if edit != nil {
		edit(config)
	}
	file := filepath.Join(c.config.Dir, name+".kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return "", fmt.Errorf("write kubeconfig %s: %w", name, err)
	}
	return file, nil
}
