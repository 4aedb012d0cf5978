// Package controlplane runs a real etcd and a real kube-apiserver for tests and measurements: RBAC,
// TLS, tokens, dual stack, no controllers, so that a test writes every EndpointSlice itself.
//
//	Config.Netns                                      elsewhere, e.g. a lab's node
//	  etcd 127.0.0.1 ◀── kube-apiserver Config.Addr ◀── kube-proxy --kubeconfig (Kubeconfig)
//	                            ▲
//	                            └── Client: this process, which dials from inside Netns
//
// Both can be stopped, killed, started again on the same data and, with Snapshot and Restore, put
// back in time.
package controlplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// stopGrace is how long etcd and the API server get to end in good order.
const stopGrace = 20 * time.Second

// Config configures a control plane. The zero value is valid except for Dir, APIServer and
// Etcd.
type Config struct {
	// existing, empty folder for data, certificates and logs; a memory file system makes writes
	// fast
	Dir       string
	APIServer string     // path of the program, see Build
	Etcd      string     // the same; 3.4 too will do, but an API server on it refuses to watch with initial events
	Netns     string     // path of the network namespace to run in; "" is the caller's
	Addr      netip.Addr // address of the API server, assigned in Netns; zero is 127.0.0.1
	Snapshot  string     // folder that Snapshot wrote, to start with its data; "" is an empty cluster
	Port      int        // of the API server; 0 is any that is free
	Pods      bool       // pods run: ServiceAccounts have tokens, and a kubelet has the rights of its node alone
	AllAddrs  bool       // listen on every address of Netns; the certificate is valid for Addr alone all the same
	Logf      func(format string, args ...any)
}

func (c Config) bindAddress() netip.Addr {
	if c.AllAddrs {
		return netip.IPv4Unspecified()
	}
	return c.Addr
}

// ControlPlane is a running etcd and API server. Its methods are not safe for concurrent use,
// except those that only use Client.
type ControlPlane struct {
	Client kubernetes.Interface // as AdminUser, without a rate limit

	config        Config
	cert          []byte // of the API server, which is its own authority
	etcdPort      int
	peerPort      int
	securePort    int
	apiserverArgs []string
	etcd          *Process
	apiserver     *Process
	clients       []*Process // of the API server: controller manager and scheduler
}

// Start starts etcd and the API server and waits until both are ready. On error no process is left
// running.
func Start(ctx context.Context, config Config) (*ControlPlane, error) {
	if !config.Addr.IsValid() {
		config.Addr = netip.MustParseAddr("127.0.0.1")
	}
	if config.Logf == nil {
		config.Logf = func(string, ...any) {}
	}
	c := &ControlPlane{config: config}
	if err := c.choosePorts(); err != nil {
		return nil, err
	}
	if err := c.prepareAPIServer(); err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(c.RESTConfig(AdminUser))
	if err != nil {
		return nil, fmt.Errorf("make client of the API server: %w", err)
	}
	c.Client = client
	if config.Snapshot != "" {
		if err := c.Restore(config.Snapshot); err != nil {
			return nil, err
		}
	}
	start := time.Now()
	if err := c.StartEtcd(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if err := c.StartAPIServer(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	config.Logf("etcd and kube-apiserver at %s are ready after %v", c.URL(), time.Since(start).Round(time.Millisecond))
	return c, nil
}

// Ensure starts the processes that were stopped or have ended.
func (c *ControlPlane) Ensure(ctx context.Context) error {
	for _, part := range []struct {
		process *Process
		start   func(context.Context) error
	}{{c.etcd, c.StartEtcd}, {c.apiserver, c.StartAPIServer}} {
		select {
		case <-part.process.Done():
			if err := part.start(ctx); err != nil {
				return err
			}
		default:
		}
	}
	return nil
}

// Close kills all processes.
func (c *ControlPlane) Close() error {
	var errs []error
	for _, p := range append(c.clients, c.apiserver, c.etcd) {
		if p != nil {
			errs = append(errs, p.Kill())
		}
	}
	return errors.Join(errs...)
}

// URL is the address of the API server.
func (c *ControlPlane) URL() string {
	return "https://" + net.JoinHostPort(c.config.Addr.String(), strconv.Itoa(c.securePort))
}

// RESTConfig returns the configuration of a client in this process that acts as the user.
func (c *ControlPlane) RESTConfig(user string) *rest.Config {
	return &rest.Config{
		Host:            c.URL(),
		BearerToken:     token(user),
		TLSClientConfig: rest.TLSClientConfig{CAData: c.cert},
		ContentConfig:   rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf"},
		QPS:             -1,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			return dial(ctx, c.config.Netns, network, address)
		},
	}
}

// choosePorts takes three ports that are free in the namespace now.
func (c *ControlPlane) choosePorts() error {
	return enter(c.config.Netns, func() error {
		for _, port := range []struct {
			on  netip.Addr
			out *int
		}{
			{netip.MustParseAddr("127.0.0.1"), &c.etcdPort},
			{netip.MustParseAddr("127.0.0.1"), &c.peerPort},
			{c.config.Addr, &c.securePort},
		} {
			l, err := net.Listen("tcp", netip.AddrPortFrom(port.on, 0).String())
			if err != nil {
				return fmt.Errorf("choose a port of the control plane: %w", err)
			}
			defer l.Close() // held until all are chosen, so that they differ
			*port.out = l.Addr().(*net.TCPAddr).Port
		}
		if c.config.Port != 0 {
			c.securePort = c.config.Port
		}
		return nil
	})
}

// start starts one of the two processes; its output is appended to its log.
func (c *ControlPlane) start(name string, cmd *exec.Cmd) (*Process, error) {
	log, err := os.OpenFile(c.logFile(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", name, err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	return StartProcess(name, c.config.Netns, cmd)
}

// waitReady requests url until the answer is 200. The error of a process that ends or stays unready
// has the end of its log.
func (c *ControlPlane) waitReady(ctx context.Context, name string, process *Process, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	defer every(5*time.Second, func(since time.Duration) { c.config.Logf("waiting for %s, %v", name, since) })()
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		// This only checks whether this child answers; this package made its certificate.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return dial(ctx, c.config.Netns, network, address)
		},
	}}
	for {
		err := probe(ctx, client, url)
		if err == nil {
			return nil
		}
		select {
		case <-process.Done():
			return fmt.Errorf("%s ended with status %d:\n%s", name, process.ExitCode(), c.logTail(name, 20))
		case <-ctx.Done():
			return fmt.Errorf("%s does not become ready: %w\n%s", name, err, c.logTail(name, 20))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func probe(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", response.Status, body)
	}
	return nil
}
