package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// completionCommand is "kube-proxy completion".
func completionCommand(root *cobra.Command, out io.Writer) *cobra.Command {
	shells := map[string]func() error{
		"bash": func() error { return root.GenBashCompletionV2(out, false) },
		"zsh":  func() error { return root.GenZshCompletionNoDesc(out) },
		"fish": func() error { return root.GenFishCompletion(out, false) },
	}
	cmd := &cobra.Command{
		Use: "completion", ValidArgs: []string{"bash", "fish", "zsh"}, Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || shells[args[0]] == nil {
				return fmt.Errorf("want kube-proxy completion bash, zsh or fish")
			}
			return shells[args[0]]()
		},
	}
	cmd.SetHelpFunc(func(*cobra.Command, []string) {
		io.WriteString(out, "Usage: kube-proxy completion bash|zsh|fish\n\n"+
			wrapped("Prints what has the shell complete commands of kube-proxy, its flags, and the names of Services, which it asks the proxy that runs for.")+
			"\n  bash    source <(kube-proxy completion bash)\n  zsh     source <(kube-proxy completion zsh)\n  fish    kube-proxy completion fish | source\n")
	})
	return cmd
}
