package controlplane

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// The ranges of service addresses of the cluster.
const (
	ServiceRange4 = "10.96.0.0/12"
	ServiceRange6 = "fd00:10:96::/108"
)

// ClusterDNS is the cluster IP that kubelets give pods as their name server.
const ClusterDNS = "10.96.0.10"

// The users of the API server, by their tokens. ProxyUser gets its rights from the built-in
// ClusterRoleBinding system:node-proxier alone; StrangerUser has only the rights of every
// authenticated user.
const (
	AdminUser    = "admin"
	ProxyUser    = "system:kube-proxy"
	StrangerUser = "stranger"
)

// KubeletUser is the kubelet of node1, node2 or client. It has rights only with Config.Pods.
func KubeletUser(node string) string { return "system:node:" + node }

// groups has the users of the API server, each with a group besides.
var groups = map[string]string{AdminUser: "system:masters", ProxyUser: "none", StrangerUser: "none",
	KubeletUser("node1"): "system:nodes", KubeletUser("node2"): "system:nodes", KubeletUser("client"): "system:nodes"}

// token is the bearer token of a user.
func token(user string) string { return "token-of-" + user }

// auditPolicy records each request of the proxy, with the rule that allowed it, and nothing else.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
  users: ["system:kube-proxy"]
- level: None
`

// prepareAPIServer writes the files that the API server reads and computes its command line.
func (c *ControlPlane) prepareAPIServer() error {
	dir := c.config.Dir
	serving := []netip.Addr{c.config.Addr, netip.MustParseAddr("10.96.0.1")}
	certFile, keyFile, err := writeServer(dir, "apiserver", serving, []string{"kubernetes.default.svc"})
	if err != nil {
		return err
	}
	if c.cert, err = os.ReadFile(certFile); err != nil {
		return err
	}
	saKey, saPublic, err := writeServiceAccountKeys(dir)
	if err != nil {
		return err
	}
	var users strings.Builder
	for user, group := range groups {
		fmt.Fprintf(&users, "%s,%s,%s,%s\n", token(user), user, user, group)
	}
	tokenFile, policyFile := filepath.Join(dir, "tokens.csv"), filepath.Join(dir, "audit-policy.yaml")
	files := map[string]string{tokenFile: users.String(), policyFile: auditPolicy}
	for name, content := range files {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			return fmt.Errorf("write file of the API server: %w", err)
		}
	}
	c.apiserverArgs = []string{
		"--etcd-servers=http://127.0.0.1:" + strconv.Itoa(c.etcdPort),
		"--bind-address=" + c.config.bindAddress().String(), "--advertise-address=" + c.config.Addr.String(),
		"--secure-port=" + strconv.Itoa(c.securePort),
		"--tls-cert-file=" + certFile, "--tls-private-key-file=" + keyFile,
		"--token-auth-file=" + tokenFile,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-signing-key-file=" + saKey, "--service-account-key-file=" + saPublic,
		"--service-cluster-ip-range=" + ServiceRange4 + "," + ServiceRange6,
		"--audit-policy-file=" + policyFile, "--audit-log-path=" + c.AuditLog(),
		"--allow-privileged=true", // as clusters do; for docs/examples/daemonset.yaml
		// Without this, a server that is stopped holds its watches open until the request timeout,
		// a minute.
		"--shutdown-watch-termination-grace-period=1s",
	}
	if c.config.Pods {
		c.apiserverArgs = append(c.apiserverArgs, "--authorization-mode=Node,RBAC",
			"--enable-admission-plugins=NodeRestriction", "--kubelet-preferred-address-types=InternalIP")
	} else {
		c.apiserverArgs = append(c.apiserverArgs, "--authorization-mode=RBAC",
			"--disable-admission-plugins=ServiceAccount")
	}
	return nil
}

// AuditLog is the path of the audit log: one JSON object a line for each request of the proxy.
func (c *ControlPlane) AuditLog() string { return filepath.Join(c.config.Dir, "audit.log") }

// StartAPIServer starts the API server with the same addresses, certificates and users each time,
// and waits for /readyz.
func (c *ControlPlane) StartAPIServer(ctx context.Context) error {
	process, err := c.start("kube-apiserver", exec.Command(c.config.APIServer, c.apiserverArgs...))
	if err != nil {
		return err
	}
	c.apiserver = process
	return c.AwaitAPIServer(ctx)
}

// AwaitAPIServer waits until the running API server reports that it is ready, e.g. after etcd was
// down.
func (c *ControlPlane) AwaitAPIServer(ctx context.Context) error {
	return c.waitReady(ctx, "kube-apiserver", c.apiserver, c.URL()+"/readyz")
}

// APIServer is the process of the API server, the last that was started.
func (c *ControlPlane) APIServer() *Process { return c.apiserver }

// StopAPIServer ends the API server in good order.
func (c *ControlPlane) StopAPIServer() error { return c.apiserver.Stop(stopGrace) }

// logTail is the last lines of a process's log.
func (c *ControlPlane) logTail(name string, lines int) string {
	content, err := os.ReadFile(c.logFile(name))
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(content)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

func (c *ControlPlane) logFile(name string) string { return filepath.Join(c.config.Dir, name+".log") }
