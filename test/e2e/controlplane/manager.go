package controlplane

import (
	"os/exec"
	"path/filepath"
)

// StartControllerManager starts a kube-controller-manager with the controllers for a DaemonSet's
// pods: those that create and delete them, and those that give them a ServiceAccount and the
// certificate of the API server. Close ends it.
func (c *ControlPlane) StartControllerManager(program string) error {
	kubeconfig, err := c.Kubeconfig("controller-manager", AdminUser, nil)
	if err != nil {
		return err
	}
	c.manager, err = c.start("kube-controller-manager", exec.Command(program, "--kubeconfig="+kubeconfig,
		"--controllers=daemonset-controller,garbage-collector-controller,root-ca-certificate-publisher-controller,"+
			"serviceaccount-controller", "--root-ca-file="+filepath.Join(c.config.Dir, "apiserver.crt"),
		"--leader-elect=false", "--secure-port=0"))
	return err
}
