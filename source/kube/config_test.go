package kube

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kubeconfig returns a good kubeconfig for a server, with a CA file and a token file.
func kubeconfig(server, ca, token string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: main
contexts:
- {name: main, context: {cluster: lab, user: proxy}}
clusters:
- {name: lab, cluster: {server: %q, certificate-authority: %q}}
users:
- {name: proxy, user: {tokenFile: %q}}
`, server, ca, token)
}

// Each fault of a kubeconfig gives one message that names the file and the field.
func TestKubeconfigErrors(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ca, token := write("ca.crt", string(authority(t))), write("token", "secret")
	good := kubeconfig("https://192.0.2.1:6443", ca, token)
	if _, err := New(Config{Kubeconfig: write("good", good), NodeName: "n1"}); err != nil {
		t.Fatalf("the good one: %v", err)
	}
	// Paths in the file are relative to it.
	if _, err := New(Config{Kubeconfig: write("relative", strings.ReplaceAll(good, dir+"/", "")),
		NodeName: "n1"}); err != nil {
		t.Fatalf("relative paths: %v", err)
	}
	// Editors of Windows end lines with CRLF, and begin a file with a mark.
	lines := strings.ReplaceAll(strings.ReplaceAll(good, ", ", ",\n  "), "\n", "\r\n")
	for name, text := range map[string]string{"CRLF": lines, "CRLF and mark": "\ufeff" + lines} {
		if rest, err := (Config{Kubeconfig: write(name, text), NodeName: "n1"}).RESTConfig(); err != nil ||
			rest.Host != "https://192.0.2.1:6443" {
			t.Errorf("%s: %+v, %v", name, rest, err)
		}
	}
	for _, c := range []struct{ name, old, new, want string }{
		{"syntax", good, "clusters: [", "is not a kubeconfig: "},
		{"type", "clusters:\n", "clusters: 7\nold:\n", "is not a kubeconfig: "},
		{"empty", good, "", "current-context: is not set"},
		{"no-current", "current-context: main", "", "current-context: is not set"},
		{"wrong-current", "current-context: main", "current-context: other",
			`current-context: there is no context "other"`},
		{"no-cluster-name", "cluster: lab, user", "user", "contexts[main].context.cluster: is not set"},
		{"no-cluster", "cluster: lab, user", "cluster: x, user",
			`contexts[main].context.cluster: there is no cluster "x"`},
		{"no-server", `server: "https://192.0.2.1:6443", `, "", "clusters[lab].cluster.server: is not set"},
		{"bad-server", `"https://192.0.2.1:6443"`, `"https://a b:6443"`, "clusters[lab].cluster.server: "},
		{"no-user", "user: proxy}", "user: x}", `contexts[main].context.user: there is no user "x"`},
		{"no-ca-file", ca, ca + "x", "clusters[lab].cluster.certificate-authority: open " + ca + "x: no such file"},
		{"bad-ca-file", ca, token, "clusters[lab].cluster.certificate-authority: has no certificate in PEM form"},
		{"bad-ca-data", fmt.Sprintf("certificate-authority: %q", ca), "certificate-authority-data: AAAA",
			"clusters[lab].cluster.certificate-authority-data: has no certificate in PEM form"},
		{"no-token-file", token, token + "x", "users[proxy].user.tokenFile: open " + token + "x: no such file"},
		{"no-cert-file", fmt.Sprintf("tokenFile: %q", token), "client-certificate: none, client-key: none",
			"users[proxy].user.client-certificate: open " + dir + "/none: no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !strings.Contains(good, c.old) {
				t.Fatalf("%q is not in the good file", c.old)
			}
			path := write(c.name, strings.Replace(good, c.old, c.new, 1))
			_, err := New(Config{Kubeconfig: path, NodeName: "n1"})
			if err == nil || !strings.HasPrefix(err.Error(), "kube: --kubeconfig "+path+": "+c.want) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("got  %v\nwant kube: --kubeconfig %s: %s", err, path, c.want)
			}
		})
	}
	// An error names the flag and the path (TN-86).
	missing := filepath.Join(dir, "missing")
	if _, err := New(Config{Kubeconfig: missing, NodeName: "n1"}); err == nil || err.Error() != "kube: --kubeconfig "+
		missing+": no such file or directory" {
		t.Errorf("a missing file: %v", err)
	}
	// --master replaces the server.
	src, err := Config{Kubeconfig: write("m", strings.Replace(good, `server: "https://192.0.2.1:6443", `, "", 1)),
		Master: "https://192.0.2.9"}.RESTConfig()
	if err != nil || src.Host != "https://192.0.2.9" {
		t.Errorf("--master with a kubeconfig: %v, %v", src, err)
	}
	if _, err := New(Config{Master: "https://a b", NodeName: "n1"}); err == nil ||
		!strings.Contains(err.Error(), `--master "https://a b"`) {
		t.Errorf("a bad --master: %v", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := New(Config{NodeName: "n1"}); err == nil ||
		!strings.Contains(err.Error(), "neither --kubeconfig nor --master is given") {
		t.Errorf("neither: %v", err)
	}
	if _, err := New(Config{Master: "https://192.0.2.9"}); err == nil ||
		!strings.Contains(err.Error(), "the name of this node") {
		t.Errorf("no node name: %v", err)
	}
}

// authority returns the certificate of httptest's servers, which is for 127.0.0.1.
func authority(t *testing.T) []byte {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

// CF-02: a server with a certificate of another host, or of another authority: one clear message.
func TestWrongCertificates(t *testing.T) {
	ca := authority(t)
	for _, c := range []struct {
		host string
		ca   []byte
		want string
	}{{"127.0.0.2", ca, "certificate is valid for"}, {"127.0.0.1", nil, "certificate signed by unknown authority"}} {
		t.Run(c.host, func(t *testing.T) {
			server := httptest.NewUnstartedServer(nil)
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			server.StartTLS()
			defer server.Close()
			withServer(t, func(t *testing.T, r *rig) {
				cfg := r.config()
				cfg.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, network, server.Listener.Addr().String())
				}
				cfg.Master, cfg.Kubeconfig = "", writeKubeconfig(t, "https://"+c.host+":6443", c.ca, "token")
				r.startWith(cfg)
				r.waitLog(c.want)
				time.Sleep(30 * time.Second)
				if lines := r.log.Lines("level=ERROR"); len(lines) != 1 ||
					!strings.Contains(lines[0], "certificate is not valid") {
					t.Errorf("log:\n%s", strings.Join(lines, "\n"))
				}
			})
		})
	}
}

// CF-02: with the right certificate a token is sent, and one that was replaced in its file is used.
func TestCredentials(t *testing.T) {
	ca := authority(t)
	withServer(t, func(t *testing.T, r *rig) {
		r.api.down()
		r.api.tls = true
		r.api.up()
		r.api.put(testService("web", 80))
		r.api.answer = func(req *http.Request) *metav1.Status {
			if req.Header.Get("Authorization") != "Bearer good" {
				return failure(401, metav1.StatusReasonUnauthorized, "Unauthorized")
			}
			return nil
		}
		cfg := r.config()
		cfg.Master, cfg.Kubeconfig = "", writeKubeconfig(t, "https://"+serverAddr, ca, "bad")
		r.startWith(cfg)
		r.waitLog("does not accept our credentials (401)")
		token := filepath.Join(filepath.Dir(cfg.Kubeconfig), "token")
		if err := os.WriteFile(token, []byte("good"), 0o600); err != nil {
			t.Fatal(err)
		}
		// client-go reads a token file once a minute; then a pause of a minute may have begun.
		time.Sleep(2 * time.Minute)
		r.wait("web:80")
	})
}

// writeKubeconfig writes a kubeconfig beside its files ca and token. Without ca it names none.
func writeKubeconfig(t *testing.T, server string, ca []byte, token string) string {
	t.Helper()
	dir := t.TempDir()
	config := kubeconfig(server, "ca", "token")
	if ca == nil {
		config = strings.Replace(config, `certificate-authority: "ca"`, "", 1)
	}
	for name, data := range map[string]string{"ca": string(ca), "token": token, "config": config} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "config")
}

// How many requests a second, and how many at once, is what was asked for; 0 and less are no bound
// (CF-05, CF-06).
func TestRequestRate(t *testing.T) {
	for _, c := range []struct{ asked, want float32 }{{5, 5}, {0.5, 0.5}, {0, -1}, {-2, -2}} {
		got, err := Config{Master: "http://127.0.0.1:1", QPS: c.asked, Burst: 7}.RESTConfig()
		if err != nil {
			t.Fatal(err)
		}
		if got.QPS != c.want || got.Burst != 7 {
			t.Errorf("asked for %v with 7 at once: %v with %d", c.asked, got.QPS, got.Burst)
		}
	}
}

// In a HostProcess container of Windows the service account, and a kubeconfig without a drive, are
// below the folder of the container (WN-24).
func TestHostProcessContainer(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string][]byte{
		"var/run/secrets/kubernetes.io/serviceaccount/token":  []byte("secret"),
		"var/run/secrets/kubernetes.io/serviceaccount/ca.crt": authority(t),
		"etc/kubeconfig": []byte(`{clusters: [{name: c, cluster: {server: "https://192.0.2.2"}}], contexts: [{name: ` +
			`x, context: {cluster: c}}], current-context: x}`),
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755),
			os.WriteFile(filepath.Join(root, name), text, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "192.0.2.1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "6443")
	t.Setenv("CONTAINER_SANDBOX_MOUNT_POINT", root)
	got, err := Config{NodeName: "n1"}.RESTConfig()
	if err != nil || got.Host != "https://192.0.2.1:6443" || got.BearerToken != "secret" ||
		!strings.HasPrefix(got.BearerTokenFile, root) || !strings.HasPrefix(got.CAFile, root) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := (Config{Kubeconfig: "/etc/kubeconfig", NodeName: "n1"}).RESTConfig(); err != nil ||
		got.Host != "https://192.0.2.2" {
		t.Errorf("a kubeconfig of the container: %+v, %v", got, err)
	}
	if got := inContainer("C:/k/config"); got != "C:/k/config" {
		t.Errorf("a file of the node is taken to be %s", got)
	}
	if err := os.WriteFile(filepath.Join(root, "var/run/secrets/kubernetes.io/serviceaccount/ca.crt"), nil,
		0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := (Config{NodeName: "n1"}).RESTConfig(); err != nil || got.CAFile != "" {
		t.Errorf("without a certificate: %+v, %v", got, err)
	}
	t.Setenv("CONTAINER_SANDBOX_MOUNT_POINT", filepath.Join(root, "none"))
	if _, err := (Config{NodeName: "n1"}).RESTConfig(); err == nil ||
		!strings.Contains(err.Error(), "read this pod's service account") {
		t.Errorf("no token: %v", err)
	}
}
