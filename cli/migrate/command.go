package migrate

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

var (
	// program matches the proxy's program, with any path.
	program = regexp.MustCompile(`(?:^|/)kube-proxy(?:\.exe)?$`)
	// starter matches programs that run, or have, a kube-proxy.
	starter = regexp.MustCompile(`(?:^|/)(?:kube-proxy(?:\.exe)?|hyperkube|km|docker|podman|nerdctl|k3s|rke2|sh|ash|` +
		`bash|dash|busybox)$`)
	// commandText matches text that begins as a command line or a script does.
	commandText = regexp.MustCompile(`^(?:-{1,2}[a-zA-Z]|#!|(?:\S*/)?(?:kube-proxy(?:\.exe)?|hyperkube|km|docker|` +
		`podman|nerdctl|k3s|rke2|sh|ash|bash|dash|busybox|exec|env|` +
		`nohup|nice|sudo|go-runner|taskset|chrt|ionice)(?:\s|$))`)
	// shellLine matches the option of a shell whose value is a command line: -c, also with other
	// letters, such as -ec.
	shellLine = regexp.MustCompile(`^-[a-z]*c$`)
	// filledIn matches the placeholders that Kubernetes, a shell or systemd replaces.
	filledIn = regexp.MustCompile("\\$[({A-Za-z_]|`")
	// wholeVariable matches a word that is one variable of a shell or of systemd.
	wholeVariable = regexp.MustCompile(`^(?:\$[A-Za-z_][A-Za-z0-9_]*|\$\{[A-Za-z_][A-Za-z0-9_]*\})$`)
)

// starts reports whether a command line runs a kube-proxy, perhaps by another program.
func starts(words []string) bool {
	return len(words) > 0 && (strings.HasPrefix(words[0], "-") || slices.ContainsFunc(words, func(w string) bool {
		return starter.MatchString(w)
	}))
}

// chosen reads the one command that runs a kube-proxy, and reports the others.
func (r *reader) chosen(all []command, where string) error {
	proxy := slices.IndexFunc(all, func(c command) bool {
		return len(c.words) > 0 && (program.MatchString(c.words[0]) || strings.HasPrefix(c.words[0], "-"))
	})
	if proxy < 0 {
		proxy = slices.IndexFunc(all, func(c command) bool { return starts(c.words) })
	}
	if proxy < 0 {
		return fmt.Errorf("%s runs no kube-proxy", where)
	}
	for i, c := range all {
		if i != proxy {
			r.add(Change, where, "it also runs "+c.String(), "This command is not the proxy's.",
				"Run it elsewhere if the node needs it; our image has no shell.")
		}
	}
	r.redirected(all[proxy], where)
	return r.arguments(all[proxy].words, where)
}

// redirected reports the redirections of the proxy's command.
func (r *reader) redirected(c command, where string) {
	if len(c.redirects) > 0 {
		r.ignore(where, strings.Join(c.redirects, " "), "it has no effect",
			"A shell redirects the log; the proxy writes it to the standard error output.")
	}
}

// arguments reads the words of one command line.
func (r *reader) arguments(words []string, where string) error {
	words, err := r.unwrap(words, where)
	if err != nil {
		return err
	}
	if words == nil {
		return nil // another program's configuration, or a command line inside it, was read
	}
	if r.Where != "" {
		return fmt.Errorf("it has a second command line, beside that of %s: pass one at a time", r.Where)
	}
	r.Where = where
	for i := 0; i < len(words); i++ {
		w := words[i]
		name, value, valued := strings.Cut(w, "=")
		use, known := r.flags[normal(name)[2:]]
		switch {
		case w == "":
			continue
		case wholeVariable.MatchString(w):
			return r.unset(w)
		case !strings.HasPrefix(w, "--") || !known: // a short flag, or an error that the loader finds
			r.Args = append(r.Args, w)
			continue
		case use.TakesValue && !valued && i+1 < len(words):
			i++
			value, w = words[i], name+"="+words[i]
		}
		if filledIn.MatchString(value) || normal(name) == "--hostname-override" {
			r.Filled = append(r.Filled, w)
		} else {
			r.Args = append(r.Args, w)
		}
	}
	return nil
}

// normal writes a flag's name as it is printed (G2).
func normal(name string) string {
	return "--" + strings.ReplaceAll(strings.TrimPrefix(name, "--"), "_", "-")
}

// unwrap returns the arguments of the kube-proxy that a command line runs, perhaps by other
// programs, whose own words it reports. It returns nil if another command line was read instead.
func (r *reader) unwrap(words []string, where string) ([]string, error) {
	for len(words) > 0 && !strings.HasPrefix(words[0], "-") {
		if program.MatchString(words[0]) {
			return append([]string{}, words[1:]...), nil
		}
		switch name := path.Base(words[0]); name {
		case "hyperkube", "km":
			i := slices.IndexFunc(words, func(w string) bool { return w == "proxy" || w == "kube-proxy" })
			if i < 0 {
				return nil, fmt.Errorf("%s runs %s without proxy", where, name)
			}
			if i > 1 {
				r.ignore(where, strings.Join(words[1:i], " "), "they have no effect", "They are options of "+name+".")
			}
			return append([]string{}, words[i+1:]...), nil
		case "sh", "ash", "bash", "dash", "busybox":
			i := slices.IndexFunc(words, shellLine.MatchString)
			if i < 0 || i+1 == len(words) {
				return nil, fmt.Errorf("%s runs %s without -c: pass the script", where, name)
			}
			if i+2 < len(words) {
				r.ignore(where, strings.Join(words[i+2:], " "), "they have no effect", "They are arguments "+
					"of "+name+".")
			}
			return nil, r.script(words[i+1], where)
		case "docker", "podman", "nerdctl":
			inside, err := r.container(words, where)
			if err != nil {
				return nil, err
			}
			words = inside
		case "k3s", "rke2":
			return nil, r.k3sCommand(words, where)
		default:
			i := slices.IndexFunc(words[1:], starter.MatchString)
			if i < 0 { // a program that has the proxy's flags
				i = slices.IndexFunc(words[1:], func(w string) bool { return strings.HasPrefix(w, "--") })
			}
			if i < 0 {
				return nil, fmt.Errorf("%s runs no kube-proxy: it runs %s", where, strings.Join(words, " "))
			}
			r.ignore(where, strings.Join(words[:i+1], " "), "it is left out",
				"It starts the proxy, and is not part of its configuration.")
			words = words[i+1:]
		}
	}
	return append([]string{}, words...), nil
}

// script reads the text of a shell. The variables of the input are its environment.
func (r *reader) script(text, where string) error {
	s := shell{vars: r.vars, used: r.varUsed}
	all, err := s.commands(text)
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	for _, a := range s.assigned {
		if !a.read && a.value != "" {
			r.unread(where, a)
		}
	}
	return r.chosen(all, where)
}

// alone are the options of "docker run" without a value.
var alone = []string{"detach", "rm", "interactive", "tty", "privileged", "init", "read-only", "publish-all",
	"no-healthcheck", "oom-kill-disable", "disable-content-trust", "quiet", "sig-proxy", "replace", "systemd"}

// container returns the command line in a "docker run", and reports its options.
func (r *reader) container(words []string, where string) ([]string, error) {
	i := 1 + slices.IndexFunc(words, func(w string) bool { return w == "run" || w == "create" })
	if i == 0 {
		return nil, fmt.Errorf("%s runs %s without run", where, words[0])
	}
	entrypoint := ""
	for ; i < len(words) && strings.HasPrefix(words[i], "-"); i++ {
		name, value, valued := strings.Cut(words[i], "=")
		short := !strings.HasPrefix(name, "--")
		switch {
		case valued:
		case short && (len(name) > 2 || strings.ContainsAny(name[1:], "ditPq")): // -it, or -v/x:/y
		case slices.Contains(alone, strings.TrimLeft(name, "-")):
		case i+1 < len(words):
			i++
			value = words[i]
		}
		if name == "--entrypoint" {
			entrypoint = value
		}
	}
	if i >= len(words) {
		return nil, fmt.Errorf("%s: %s names no image", where, strings.Join(words, " "))
	}
	inside := append([]string{}, words[i+1:]...)
	switch image := words[i]; {
	case entrypoint != "":
		inside = append([]string{entrypoint}, inside...)
	case len(inside) > 0 && !strings.HasPrefix(inside[0], "-"):
	case strings.Contains(image, "kube-proxy"):
		inside = append([]string{"kube-proxy"}, inside...)
	default:
		return nil, fmt.Errorf("%s: the program of image %s is unknown: name it on the command line", where, image)
	}
	r.add(Change, where, "it runs a container: "+strings.Join(words[:i+1], " "),
		"These are options of "+path.Base(words[0])+" and the image, not of the proxy.",
		"Keep host network, privileges and mounts, and replace the image and the program with ours.")
	return inside, nil
}
