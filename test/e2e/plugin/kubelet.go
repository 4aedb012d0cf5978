package plugin

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// Run runs a command in a container. An error with an exit code is an [ExitCode].
type Run func(ctx context.Context, command []string, stdin io.Reader, stdout, stderr io.Writer) error

// ExitCode is the end of a command with a code other than 0.
func ExitCode(code int) error {
	return utilexec.CodeExitError{Err: errors.New("the command failed"), Code: code}
}

// Kubelet is the part of a kubelet that runs commands, for pods of any number of nodes.
type Kubelet struct {
	// Pods are the commands of containers, by the name of the pod. They must not change while it
	// serves.
	Pods map[string]Run
	// Running and Most count commands: now, and the most there were at once.
	Running, Most atomic.Int64
}

// ServeHTTP answers /exec/NAMESPACE/POD/CONTAINER.
func (k *Kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	options, err := remotecommand.NewOptions(r)
	if len(parts) != 4 || parts[0] != "exec" || k.Pods[parts[2]] == nil || err != nil {
		http.Error(w, "no such container", http.StatusNotFound)
		return
	}
	remotecommand.ServeExec(w, r, k, parts[2], "", parts[3], r.URL.Query()["command"],
		options, time.Minute, time.Minute, protocols)
}

// protocols are those of a kubelet: the API server translates the newer one, for WebSockets,
// itself.
var protocols = []string{
	remotecommand.StreamProtocolV4Name, remotecommand.StreamProtocolV3Name,
	remotecommand.StreamProtocolV2Name, remotecommand.StreamProtocolV1Name,
}

// ExecInContainer runs a command.
func (k *Kubelet) ExecInContainer(ctx context.Context, pod, _, _ string, command []string,
	in io.Reader, out, errOut io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	now := k.Running.Add(1)
	defer k.Running.Add(-1)
	for most := k.Most.Load(); now > most && !k.Most.CompareAndSwap(most, now); most = k.Most.Load() {
	}
	return k.Pods[pod](ctx, command, in, out, errOut)
}
