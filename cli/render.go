package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"kube-proxy/config"
	"kube-proxy/internal/wiring"
	"kube-proxy/lb"
	"kube-proxy/mode"
)

// renderHelp is the help of "kube-proxy render".
func renderHelp(modes mode.List) string {
	var loads []string
	for _, m := range modes {
		if m.Render == nil {
			continue
		}
		what := "that of"
		if len(loads) == 0 {
			what = "the input of"
		}
		loads = append(loads, fmt.Sprintf("in mode %s %s %s", m.Name, what, m.Loader))
	}
	return "Usage: kube-proxy render --manifests DIR [flags]\n\n" +
		wrapped("Prints what kube-proxy with the same flags would write to an empty kernel for the objects in DIR: "+
			strings.Join(loads, "; ")+". Changes nothing, and needs no privileges. An invalid file is reported on "+
			"stderr; the rest is rendered, and the exit code is 1.") + "\n" +
		"Accepts all flags of kube-proxy, see kube-proxy --help; flags that do not affect rules are ignored.\n"
}

// render is "kube-proxy render".
func (p *program) render() *cobra.Command {
	cmd := p.command(command{
		name: "render", short: "print the rules for a folder of manifests", help: renderHelp(p.modes),
		renders: true,
		run: func(_ context.Context, cfg *config.Config, _ bool) error {
			return render(cfg, p.modes, p.out, p.errOut)
		},
	})
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { // report all mistakes at once
		return config.Unparsed(slices.DeleteFunc(slices.Clone(p.commandLine),
			func(s string) bool { return s == "render" }), err, p.modes)
	})
	return cmd
}

// errRendered means that some objects were invalid; their faults were reported.
var errRendered = errors.New("some objects could not be rendered, see above")

func render(cfg *config.Config, modes mode.List, out, errOut io.Writer) error {
	if cfg.Manifests == "" {
		return config.Problems{{Where: "--manifests", Want: "want the folder of objects to render"}}
	}
	objects, wrong, err := load(cfg.Manifests, errOut)
	if err != nil {
		return err
	}
	store := filled(cfg.NodeName, objects)
	m := offlineMode(cfg, modes)
	switch {
	case !m.Built():
		return fmt.Errorf("mode %s: only a build for %s can render it", m.Name, m.OS)
	case m.Render == nil:
		return fmt.Errorf("mode %s cannot be rendered: its rules redirect to ports of a running proxy; inspect a "+
			"running one: %s", m.Name, m.Show)
	}
	resolved, err := wiring.Resolve(cfg, m)
	if err != nil {
		return err
	}
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		table, conflicts, refused := desired(store, budget(resolved, fam))
		for _, c := range conflicts {
			fmt.Fprintf(errOut, "kube-proxy: %s belongs to %s, not to %s\n", c.Key, c.Winner.Name, c.Loser.Name)
		}
		for _, text := range refused {
			fmt.Fprintf(errOut, "kube-proxy: %s\n", text)
		}
		text, err := m.Render(resolved.Plane(fam), table)
		if err != nil && text == nil {
			return err
		} else if err != nil {
			fmt.Fprintf(errOut, "kube-proxy: %v\n", err)
			wrong = true
		}
		if _, err := io.Copy(out, bytes.NewReader(text)); err != nil {
			return fmt.Errorf("print the rules: %w", err)
		}
	}
	if wrong {
		return errRendered
	}
	return nil
}
