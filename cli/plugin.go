package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"kube-proxy/cli/kubectl"
	"kube-proxy/config"
	"kube-proxy/debug/api"
	"kube-proxy/debug/inspect"
	"kube-proxy/internal/plural"
	"kube-proxy/lb"
)

// PluginName is how people call the program as a plugin of kubectl, which finds it as
// kubectl-svcproxy in the PATH.
const PluginName = "kubectl svcproxy"

// IsPlugin reports whether a program of this name, with or without a folder, is the plugin.
func IsPlugin(program string) bool {
	return strings.TrimSuffix(filepath.Base(program), ".exe") == strings.ReplaceAll(PluginName, " ", "-")
}

// plugin is the program as a plugin of kubectl.
type plugin struct {
	out, errOut io.Writer
	flags       kubectl.Flags
	node        string
	timeout     time.Duration
}

const (
	// nodesAtOnce is how many proxies are queried at once.
	nodesAtOnce = 50
	// nodeTimeout is how long the proxy of one node may take to answer, unless --timeout sets
	// another.
	nodeTimeout = 15 * time.Second
)

// NewPlugin returns the program as a plugin of kubectl: the commands that query a proxy, for those
// of a cluster.
func NewPlugin(out, errOut io.Writer, commandLine []string) *cobra.Command {
	out, errOut = onScreen(out), onScreen(errOut)
	p := &plugin{out: out, errOut: errOut}
	root := &cobra.Command{
		Use: PluginName, SilenceErrors: true, SilenceUsage: true, Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return errors.Join(meant(cmd, args, PluginName), fmt.Errorf("want a command: see %s --help", PluginName))
		},
	}
	p.flags.Add(root.PersistentFlags())
	root.PersistentFlags().StringVar(&p.node, "node", "", "")
	root.PersistentFlags().DurationVar(&p.timeout, "timeout", nodeTimeout, "")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return config.FlagError(cmd.Flags(), err) })
	for _, a := range queryCommands() {
		if a.name != connectQuery().name {
			root.AddCommand(p.command(a))
		}
	}
	root.SetOut(out)
	root.SetErr(errOut)
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(&cobra.Command{Use: "no-help", Hidden: true})
	root.SetHelpFunc(func(*cobra.Command, []string) { io.WriteString(out, pluginHelp(root.Commands())) })
	root.SetArgs(commandLine)
	return root
}

func pluginHelp(commands []*cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage: %s COMMAND [flags]\n\n", PluginName)
	b.WriteString(wrapped("Queries the kube-proxy of one node or of all nodes, with your kubeconfig: " +
		"it runs \"kube-proxy connect\" in each proxy's pod, as kubectl exec does, and merges the answers. " +
		"The result names each node that does not answer. Nothing is changed."))
	b.WriteString("\nCommands (each has its own --help):\n")
	for _, c := range commands {
		if !c.Hidden {
			fmt.Fprintf(&b, "  %-10s  %s\n", c.Name(), c.Short)
		}
	}
	return b.String() + pluginFlags
}

// pluginFlags are the flags of all commands, and the rights that these need.
const pluginFlags = `
Flags of all commands:
      --node string              query this node only; default: trace the node of its Pod, ui the first node, others all nodes
      --timeout duration         timeout for the answer of one node, default 15s
      --proxy-namespace string   namespace of the proxy's pods, default kube-system
      --selector string          labels of the proxy's pods, default those of kubeadm and of the chart
  -n, --namespace string         namespace of Pods and Services that are named without one
      --kubeconfig, --context and the other connection flags of kubectl

Required permissions: list pods and create pods/exec (before Kubernetes 1.35 also get pods/exec) in the
proxy's namespace; for trace from a Pod, get pods in its namespace. docs/kubectl.md has the Role.
`

func (p *plugin) command(a queryCommand) *cobra.Command {
	var output string
	var watch bool
	cmd := &cobra.Command{Use: a.name, Short: a.short, Args: cobra.ArbitraryArgs}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		format, err := a.checked(PluginName, args, output)
		if err != nil {
			return err
		}
		return reported(p.run(cmd.Context(), a, args, format, watch))
	}
	a.printFlags(cmd, &output, &watch)
	cmd.SetHelpFunc(func(*cobra.Command, []string) { io.WriteString(p.out, a.help(PluginName, pluginFlags)) })
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return cmd
}

// run queries the node of the command line, or all nodes.
func (p *plugin) run(ctx context.Context, a queryCommand, args []string, format string, watch bool) error {
	c, err := kubectl.Connect(&p.flags)
	if err != nil {
		return asked{err, ExitNotAsked}
	}
	node := p.node
	var from []string
	if a.source && len(args) == 2 {
		if node, from, err = p.source(ctx, c, args); err != nil {
			return err
		}
	}
	for i, name := range args {
		if a.takes == nil || !c.Given {
			break
		}
		if service, _ := a.takes(args[:i]); service {
			args[i] = inNamespace(c.Namespace, name)
		}
	}
	proxies, err := c.Proxies(ctx)
	switch {
	case err != nil:
		return asked{err, ExitNotAsked}
	case node != "" || a.single:
		proxy, err := choose(proxies, node)
		if err != nil {
			return asked{err, ExitNotAsked}
		}
		if node == "" {
			fmt.Fprintf(p.errOut, "%s: note: asking node %s; --node NODE chooses another\n", PluginName, proxy.Node)
		}
		q := &queries{client: p.client(c, proxy), out: p.out, errOut: p.errOut, format: format}
		return askFrom(from, args, func() error {
			if watch {
				return a.watching(ctx, q, args)
			}
			return a.ask(ctx, q, args)
		})
	case watch:
		return errors.New("--watch needs --node NODE")
	}
	return p.merge(a, p.askAll(ctx, c, proxies, a, args, format), format)
}

// askFrom calls ask with each of the addresses of a Pod as the source, until one has an IP family
// of the destination; without addresses it calls ask once.
func askFrom(from, args []string, ask func() error) (err error) {
	if len(from) == 0 {
		return ask()
	}
	for _, args[0] = range from {
		var p *inspect.Problem
		if err = ask(); !errors.As(err, &p) || p.Kind != inspect.Bad {
			return err
		}
	}
	return err
}

// nodeBytes limits the answer of one node among many, in bytes: a few hostile nodes must not fill
// the memory of who queries all.
const nodeBytes = 64 << 20

// client returns the client for one proxy.
func (p *plugin) client(c *kubectl.Cluster, proxy kubectl.Proxy) *api.Client {
	return api.Over(proxy.At(), func(ctx context.Context) (net.Conn, error) { return c.Dial(ctx, proxy) }).
		Limit(p.timeout, nodeBytes)
}

// choose returns the proxy of a node, or, without one, the first that runs.
func choose(proxies []kubectl.Proxy, node string) (kubectl.Proxy, error) {
	at := slices.IndexFunc(proxies, func(p kubectl.Proxy) bool {
		return p.Node == node || node == "" && p.Unready == ""
	})
	switch {
	case at >= 0:
		return proxies[at], nil
	case node == "":
		return kubectl.Proxy{}, errors.New("no proxy runs on any node")
	}
	return kubectl.Proxy{}, fmt.Errorf("no proxy pod on node %s", lb.Printable(node))
}

// source returns the node at which the packet of a trace starts, and the sources that its Pod may
// have there; none for another source.
func (p *plugin) source(ctx context.Context, c *kubectl.Cluster,
	args []string) (node string, from []string, err error) {
	name := strings.TrimPrefix(args[0], "pod/")
	if name == "node" || isAddress(name) {
		if p.node == "" {
			return "", nil, fmt.Errorf("--node NODE is missing: on which node does the packet from %s begin?",
				lb.Printable(name))
		}
		return p.node, nil, nil
	}
	namespace, pod, found := strings.Cut(name, "/")
	if !found {
		namespace, pod = c.Namespace, name
	}
	is, err := c.Pod(ctx, namespace, pod)
	if err != nil {
		return "", nil, asked{err, ExitNotAsked}
	}
	from = []string{"node"}
	if !is.Host {
		from = is.Addrs
	}
	fmt.Fprintf(p.errOut, "%s: note: Pod %s/%s is at %s, on %s\n",
		PluginName, lb.Printable(namespace), lb.Printable(pod), strings.Join(is.Addrs, " and "), lb.Printable(is.Node))
	return cmp.Or(p.node, is.Node), from, nil
}

func isAddress(s string) bool { return (inspect.PacketText{From: s}).Packet().From.IsValid() }

// inNamespace adds a namespace to the name of a Service, which may have a suffix, if it has none.
func inNamespace(namespace, name string) string {
	bare, _, _ := strings.Cut(name, ":")
	if strings.ContainsAny(bare, "/.") || bare == "nodeport" || isAddress(name) {
		return name
	}
	return namespace + "/" + name
}

// nodeAnswer is the answer of one node.
type nodeAnswer struct {
	node string
	text []byte // for people, or JSON
	code int    // of the command there
	err  error  // it has not answered
}

// askAll queries all proxies, some at a time, and returns an answer for each. If ctx ends, the rest
// get its error.
func (p *plugin) askAll(ctx context.Context, c *kubectl.Cluster, proxies []kubectl.Proxy,
	a queryCommand, args []string, format string) []nodeAnswer {
	if a.merge != nil || format == "yaml" {
		format = "json"
	}
	answers := make([]nodeAnswer, len(proxies))
	bar := newProgress(p.errOut, len(proxies))
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(nodesAtOnce, len(proxies)) {
		workers.Go(func() {
			for i := range next {
				answers[i] = p.askOne(ctx, p.client(c, proxies[i]), a, args, format)
				answers[i].node = proxies[i].Node
				bar.add(answers[i].err != nil)
			}
		})
	}
	for i := range proxies {
		next <- i
	}
	close(next)
	workers.Wait()
	bar.end()
	return answers
}

func (p *plugin) askOne(ctx context.Context, client *api.Client, a queryCommand, args []string,
	format string) nodeAnswer {
	if ctx.Err() != nil {
		return nodeAnswer{err: errors.New("not queried: interrupted")}
	}
	start := time.Now()
	limited, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	var out bytes.Buffer
	var code exitCode
	err := a.ask(limited, &queries{client: client, out: &out, errOut: io.Discard, format: format, merged: true}, args)
	switch {
	case err == nil || errors.As(err, &code):
		return nodeAnswer{text: out.Bytes(), code: int(code)}
	case ctx.Err() != nil:
		err = errors.New("interrupted")
	case limited.Err() != nil || time.Since(start) >= p.timeout: // the connection has the same limit
		err = fmt.Errorf("no answer in %s", p.timeout)
	}
	return nodeAnswer{err: err}
}

// progress shows on a terminal how many nodes have answered.
type progress struct {
	mu           sync.Mutex
	out          io.Writer // nil: no output
	n, done, bad int
}

func newProgress(out io.Writer, n int) *progress {
	if !isTerminal(out) {
		return &progress{n: n}
	}
	return &progress{out: rawOf(out), n: n}
}

// barWidth is how many columns the bar has.
const barWidth = 30

func (b *progress) add(bad bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done++
	if bad {
		b.bad++
	}
	if b.out == nil {
		return
	}
	full := barWidth * b.done / b.n
	fmt.Fprintf(b.out, "\r[%s%s] %d of %s",
		strings.Repeat("#", full), strings.Repeat(" ", barWidth-full), b.done, plural.Count(b.n, "node", "nodes"))
	if b.bad > 0 {
		fmt.Fprintf(b.out, ", %d without an answer", b.bad)
	}
}

// end removes the bar.
func (b *progress) end() {
	if b.out != nil {
		io.WriteString(b.out, "\r\x1b[K")
	}
}
