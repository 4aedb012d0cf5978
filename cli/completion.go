package cli

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kube-proxy/config"
	"kube-proxy/debug/inspect"
	"kube-proxy/mode"
)

// completionCommand is "kube-proxy completion".
func completionCommand(root *cobra.Command, out io.Writer) *cobra.Command {
	shells := map[string]func() error{
		"bash": func() error { return root.GenBashCompletionV2(out, false) },
		"zsh":  func() error { return root.GenZshCompletionNoDesc(out) },
		"fish": func() error { return root.GenFishCompletion(out, false) },
	}
	cmd := &cobra.Command{
		Use: "completion", Short: "print a completion script for bash, zsh or fish",
		ValidArgs: []string{"bash", "fish", "zsh"}, Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || shells[args[0]] == nil {
				return fmt.Errorf("want kube-proxy completion bash, zsh or fish")
			}
			return shells[args[0]]()
		},
	}
	cmd.SetHelpFunc(func(*cobra.Command, []string) {
		io.WriteString(out, "Usage: kube-proxy completion bash|zsh|fish\n\n"+
			wrapped("Prints a script that completes commands, flags and the names of Services, which the "+
				"script gets from the running proxy.")+
			"\n  bash    source <(kube-proxy completion bash), needs the package bash-completion\n"+
			"  zsh     source <(kube-proxy completion zsh), after compinit\n"+
			"  fish    kube-proxy completion fish | source\n")
	})
	return cmd
}

// completeFlag has a shell complete a flag that the command has to one of these values.
func completeFlag(cmd *cobra.Command, name string, values ...string) {
	// the flag exists
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// completeModes lets a shell complete --proxy-mode with the modes that can run here.
func completeModes(cmd *cobra.Command, modes mode.List) {
	completeFlag(cmd, "proxy-mode", modes.Names(func(m mode.Mode) bool { return m.Here() })...)
}

// oneService is for a command whose one argument is the name of a Service.
func oneService(args []string) (service bool, words []string) { return len(args) == 0, nil }

// completes returns the completions of an argument.
func (a queryCommand) completes(opts *config.Options, modes mode.List) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) (offer []string, directive cobra.ShellCompDirective) {
		directive = cobra.ShellCompDirectiveNoFileComp
		if a.takes == nil {
			return nil, directive
		}
		service, words := a.takes(args)
		for _, w := range words {
			if strings.HasPrefix(w, begun) {
				offer = append(offer, w)
			}
		}
		if len(offer) == 1 && strings.ContainsAny(offer[0], ":/") {
			directive |= cobra.ShellCompDirectiveNoSpace // more has to follow
		}
		if service {
			offer = append(offer, services(cmd, opts, modes, begun)...)
		}
		return offer, directive
	}
}

// completionTimeout is how long a shell waits for the proxy that runs.
const completionTimeout = 3 * time.Second

// services are the names of Services that begin so, or, behind a name and ":", its ports; none
// without an answer.
func services(cmd *cobra.Command, opts *config.Options, modes mode.List, begun string) []string {
	client, err := askWhom(cmd, opts, modes, io.Discard)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	if name, port, cut := strings.Cut(begun, ":"); cut {
		var d inspect.Detail
		if client.Get(ctx, "service", url.Values{"name": {name}}, &d) != nil {
			return nil
		}
		return portNames(&d, name, port)
	}
	var all struct{ Services []string }
	if client.Get(ctx, "services", nil, &all) != nil {
		return nil
	}
	return namesFrom(all.Services, begun)
}

// namesFrom returns the names with the prefix begun: whole ones, and if begun is not empty, bare
// names of unique Services. A shell drops names without the typed prefix.
func namesFrom(all []string, begun string) (offer []string) {
	bare := map[string]int{}
	for _, s := range all {
		if strings.HasPrefix(s, begun) {
			offer = append(offer, s)
		}
		_, name, _ := strings.Cut(s, "/")
		bare[name]++
	}
	for name, n := range bare {
		if n == 1 && begun != "" && strings.HasPrefix(name, begun) {
			offer = append(offer, name)
		}
	}
	slices.Sort(offer)
	return offer
}

// portNames are the ports of a Service that begin so, behind the name as it was typed.
func portNames(d *inspect.Detail, name, begun string) (offer []string) {
	for _, f := range d.Families {
		for _, p := range f.Ports {
			port := p.Name
			if port == "" {
				port = strconv.Itoa(int(p.Port.Port))
			}
			if strings.HasPrefix(port, begun) && !slices.Contains(offer, name+":"+port) {
				offer = append(offer, name+":"+port)
			}
		}
	}
	return offer
}
