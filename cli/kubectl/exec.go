package kubectl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"
)

// Greeting is the output of "kube-proxy connect" once it is connected to the admin socket.
const Greeting = "kube-proxy connected\n"

// At describes the location of a proxy, for messages.
func (p Proxy) At() string { return fmt.Sprintf("pod %s/%s on node %s", p.Namespace, p.Pod, p.Node) }

// Dial connects to the admin socket of a proxy: it runs "kube-proxy connect" in its container. It
// returns once that is connected; an error has the reason if it is not. The execution ends when
// either side closes the connection. ctx limits Dial alone.
func (c *Cluster) Dial(ctx context.Context, p Proxy) (net.Conn, error) {
	if p.Unready != "" {
		return nil, errors.New(p.Unready)
	}
	executor, err := c.executor(p)
	if err != nil {
		return nil, fmt.Errorf("run a command in %s: %w", p.At(), err)
	}
	here, there := net.Pipe()
	// client-go logs each stream that ends; the error of the execution has the essential part
	quiet := klog.NewContext(context.WithoutCancel(ctx), logr.Discard())
	running, cancel := context.WithCancelCause(quiet)
	out, said := &greeted{to: there, done: make(chan struct{})}, &head{}
	go func() {
		err := executor.StreamWithContext(running, remotecommand.StreamOptions{Stdin: there, Stdout: out, Stderr: said})
		cancel(because(err, said))
		there.Close() // the other end reads io.EOF
	}()
	select {
	case <-out.done:
		return &execution{here, cancel}, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-running.Done():
		err = context.Cause(running)
	}
	cancel(err)
	here.Close()
	return nil, err
}

// executor runs over a WebSocket, or over SPDY where the server or a proxy before it cannot do
// that.
func (c *Cluster) executor(p Proxy) (remotecommand.Executor, error) {
	r := c.client.Post().Namespace(p.Namespace).Resource("pods").Name(p.Pod).SubResource("exec").
		Param("container", p.Container).Param("stdin", "true").Param("stdout", "true").Param("stderr", "true")
	for _, word := range p.command {
		r.Param("command", word)
	}
	at := r.URL()
	spdy, err := remotecommand.NewSPDYExecutor(c.config, "POST", at)
	if err != nil {
		return nil, err
	}
	socket, err := remotecommand.NewWebSocketExecutor(c.config, "GET", at.String())
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(socket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
}

// because returns the reason why an execution ended without a greeting: the program's own message,
// if there was one.
func because(err error, said *head) error {
	text := strings.TrimSpace(said.String())
	switch {
	case text != "":
		return errors.New(strings.TrimPrefix(text, "kube-proxy: cannot query the proxy: "))
	case err != nil:
		return err
	}
	return errors.New("the program there ended without an answer: is it another kube-proxy, or an older one?")
}

// execution is a connection that an execution carries.
type execution struct {
	net.Conn
	cancel context.CancelCauseFunc
}

func (e *execution) Close() error {
	err := e.Conn.Close()
	e.cancel(nil)
	return err
}

// greeted passes on the data after the greeting, and closes done when the greeting has arrived.
type greeted struct {
	to   io.Writer
	got  []byte
	done chan struct{}
	past bool
}

func (g *greeted) Write(b []byte) (int, error) {
	if g.past {
		return g.to.Write(b)
	}
	g.got = append(g.got, b...)
	if n := min(len(g.got), len(Greeting)); string(g.got[:n]) != Greeting[:n] {
		return 0, errors.New("it does not know the command connect: is it another kube-proxy, or an older one?")
	}
	if len(g.got) < len(Greeting) {
		return len(b), nil
	}
	g.past = true
	close(g.done)
	if rest := g.got[len(Greeting):]; len(rest) > 0 {
		if _, err := g.to.Write(rest); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// maxSaid limits the kept part of standard error, in bytes.
const maxSaid = 4 << 10

// head keeps the beginning of its input.
type head struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (h *head) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.b.Write(b[:min(len(b), maxSaid-h.b.Len())])
	return len(b), nil
}

func (h *head) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.b.String()
}
