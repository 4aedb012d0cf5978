package controlplane

import (
	"os/exec"
	"path/filepath"
)

// DaemonSetControllers are the controllers for the pods of a DaemonSet: those that create and
// delete them, and those that give them a ServiceAccount and the certificate of the API server.
const DaemonSetControllers = "daemonset-controller,garbage-collector-controller," +
	"root-ca-certificate-publisher-controller,serviceaccount-controller"

// StartControllerManager starts a kube-controller-manager with the controllers, "*" for all. Close
// ends it.
func (c *ControlPlane) StartControllerManager(program, controllers string) error {
	return c.startClient("kube-controller-manager", program, "--controllers="+controllers,
		"--root-ca-file="+filepath.Join(c.config.Dir, "apiserver.crt"))
}

// StartScheduler starts a kube-scheduler. Close ends it.
func (c *ControlPlane) StartScheduler(program string) error {
	return c.startClient("kube-scheduler", program)
}

// startClient starts a part of the control plane that has no rival and needs no port.
func (c *ControlPlane) startClient(name, program string, args ...string) error {
	kubeconfig, err := c.Kubeconfig(name, AdminUser, nil)
	if err != nil {
		return err
	}
	args = append(args, "--kubeconfig="+kubeconfig, "--leader-elect=false", "--secure-port=0")
	process, err := c.start(name, exec.Command(program, args...))
	if err == nil {
		c.clients = append(c.clients, process)
	}
	return err
}
