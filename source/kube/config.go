package kube

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"kube-proxy/source/convert"
)

// Config says which API server to follow and for whom. NodeName is required.
type Config struct {
	// Kubeconfig is the path of a kubeconfig file, in a HostProcess container one of the container
	// unless it has a drive; Master is an API server's URL and has precedence over the file's. With
	// neither the process must be a pod: its service account is used.
	Kubeconfig, Master string
	// NodeName is the name of this machine's Node (SV-04).
	NodeName string
	// Log takes what happens to the connection, and at level debug what client-go has to say. nil
	// is slog.Default().
	Log *slog.Logger
	// OnProblem is called for each problem of an object, once for each change of it, from several
	// goroutines at once and on the way of everybody's events. nil drops them.
	OnProblem func(convert.Problem)
	// QPS and Burst bound the requests a second to the API server; 0 is no bound. Streams are not
	// counted.
	QPS   float32
	Burst int
	// ContentType is the media type of what is sent, and AcceptContentTypes, separated by commas,
	// are those of answers, the preferred first; "" is protobuf, or for answers ContentType. There
	// are protobuf and JSON, and JSON is always accepted (PR-11).
	ContentType, AcceptContentTypes string
	// UserAgent is how the client calls itself; "" is client-go's default.
	UserAgent string
	// Dial connects to the API server, and Wrap sees each request; nil is a plain connection and no
	// wrapper. Measurements count with them.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	Wrap func(http.RoundTripper) http.RoundTripper
}

// RESTConfig returns how to reach the API server, for other clients of it (PR-12: token files are
// read again when they change, and HTTP_PROXY counts). Each error names the file and the field.
func (c Config) RESTConfig() (*rest.Config, error) {
	out, err := c.restConfig()
	if err != nil {
		return nil, err
	}
	out.UserAgent, out.Dial, out.WrapTransport = c.UserAgent, c.Dial, c.Wrap
	out.QPS, out.Burst = c.QPS, c.Burst
	if c.QPS == 0 {
		out.QPS = -1
	}
	out.ContentType, out.AcceptContentTypes, _ = c.content()
	out.WarningHandler = rest.NoWarnings{}
	return out, nil
}

func (c Config) restConfig() (*rest.Config, error) {
	switch {
	case c.Kubeconfig != "":
		return c.fromFile()
	case c.Master != "":
		out := &rest.Config{Host: c.Master}
		if _, _, err := rest.DefaultServerUrlFor(out); err != nil {
			return nil, fmt.Errorf("kube: --master %q: %w", c.Master, err)
		}
		return out, nil
	}
	return ofPod()
}

// ofPod uses the service account of the pod that this process runs in.
func ofPod() (*rest.Config, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("kube: no API server: neither --kubeconfig nor --master is given, and this process is " +
			"no pod of a cluster (KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set)")
	}
	folder := inContainer("/var/run/secrets/kubernetes.io/serviceaccount")
	out := &rest.Config{Host: "https://" + net.JoinHostPort(host, port), BearerTokenFile: filepath.Join(folder,
		"token")}
	token, err := os.ReadFile(out.BearerTokenFile)
	if err != nil {
		return nil, fmt.Errorf("kube: read this pod's service account: %w", err)
	}
	out.BearerToken = string(token)
	ca := filepath.Join(folder, "ca.crt")
	if pem, err := os.ReadFile(ca); err == nil && x509.NewCertPool().AppendCertsFromPEM(pem) {
		out.CAFile = ca // without, the system's authorities count
	}
	return out, nil
}

// inContainer returns where this process finds a path of its container. A HostProcess container of
// Windows has its files and volumes in a folder of the node, which CONTAINER_SANDBOX_MOUNT_POINT
// names; containerd 1.6 shows them nowhere else.
func inContainer(path string) string {
	if root := os.Getenv("CONTAINER_SANDBOX_MOUNT_POINT"); root != "" && strings.HasPrefix(path, "/") {
		return filepath.Join(root, path)
	}
	return path
}

// fromFile reads the kubeconfig. clientcmd would take an incomplete file as "localhost:8080" or say
// no more than "invalid configuration", so each thing it needs is looked at first.
func (c Config) fromFile() (*rest.Config, error) {
	fail := func(format string, args ...any) (*rest.Config, error) {
		return nil, fmt.Errorf("kube: --kubeconfig %s: %w", c.Kubeconfig, fmt.Errorf(format, args...))
	}
	file, err := clientcmd.LoadFromFile(inContainer(c.Kubeconfig))
	var pathErr *os.PathError
	switch {
	case errors.As(err, &pathErr):
		return fail("%w", pathErr.Err)
	case err != nil:
		return fail("is not a kubeconfig: %w", err)
	}
	if err := clientcmd.ResolveLocalPaths(file); err != nil {
		return fail("%w", err)
	}
	var overrides clientcmd.ConfigOverrides
	overrides.ClusterInfo.Server = c.Master
	if file.CurrentContext == "" {
		return fail("current-context: is not set")
	}
	current, ok := file.Contexts[file.CurrentContext]
	if !ok {
		return fail("current-context: there is no context %q", file.CurrentContext)
	}
	server, ok := file.Clusters[current.Cluster]
	switch {
	case !ok && current.Cluster == "":
		return fail("contexts[%s].context.cluster: is not set", file.CurrentContext)
	case !ok:
		return fail("contexts[%s].context.cluster: there is no cluster %q", file.CurrentContext, current.Cluster)
	case server.Server == "" && c.Master == "":
		return fail("clusters[%s].cluster.server: is not set", current.Cluster)
	}
	user, ok := file.AuthInfos[current.AuthInfo]
	if !ok && current.AuthInfo != "" {
		return fail("contexts[%s].context.user: there is no user %q", file.CurrentContext, current.AuthInfo)
	}
	if err := readable(server, current.Cluster, user, current.AuthInfo); err != nil {
		return fail("%w", err)
	}
	out, err := clientcmd.NewNonInteractiveClientConfig(*file, file.CurrentContext, &overrides, nil).ClientConfig()
	if err != nil {
		return fail("%w", err)
	}
	if _, _, err := rest.DefaultServerUrlFor(out); err != nil {
		return fail("clusters[%s].cluster.server: %q: %w", current.Cluster, out.Host, err)
	}
	return out, nil
}

// readable checks the files and certificates that a kubeconfig names.
func readable(server *clientcmdapi.Cluster, serverName string, user *clientcmdapi.AuthInfo, userName string) error {
	ca, field := server.CertificateAuthorityData, "certificate-authority-data"
	if len(ca) == 0 && server.CertificateAuthority != "" {
		field = "certificate-authority"
		data, err := os.ReadFile(server.CertificateAuthority)
		if err != nil {
			return fmt.Errorf("clusters[%s].cluster.%s: %w", serverName, field, err)
		}
		ca = data
	}
	if (len(ca) > 0 || field == "certificate-authority") && !x509.NewCertPool().AppendCertsFromPEM(ca) {
		return fmt.Errorf("clusters[%s].cluster.%s: has no certificate in PEM form", serverName, field)
	}
	if user == nil {
		return nil
	}
	for _, f := range []struct {
		field, path string
		replaced    bool // by data in the kubeconfig itself
	}{
		{"client-certificate", user.ClientCertificate, len(user.ClientCertificateData) > 0},
		{"client-key", user.ClientKey, len(user.ClientKeyData) > 0},
		{"tokenFile", user.TokenFile, false},
	} {
		if f.path == "" || f.replaced {
			continue
		}
		if _, err := os.ReadFile(f.path); err != nil {
			return fmt.Errorf("users[%s].user.%s: %w", userName, f.field, err)
		}
	}
	return nil
}
