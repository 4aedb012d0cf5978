package migrate

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// k3s is how k3s or RKE2 starts its kube-proxy: by its command line, its config.yaml, or both.
type k3s struct {
	// name is k3s or rke2; where is the input.
	name, where string
	// args are those of kube-proxy-arg, without dashes, and cluster the value of cluster-cidr. A
	// command line replaces those of the file.
	args    []string
	cluster string
	// line: they are of the command line.
	line bool
}

// k3sKeys are keys by which a config.yaml is recognized.
var k3sKeys = []string{"kube-proxy-arg", "kube-proxy-arg+", "disable-kube-proxy", "kubelet-arg", "kubelet-arg+",
	"kube-apiserver-arg", "tls-san", "write-kubeconfig-mode", "cluster-cidr", "service-cidr", "node-label", "node-ip",
	"flannel-backend", "cni", "token", "server"}

// isK3s reports whether a mapping is a config.yaml of k3s or RKE2: it has one of their keys, and no
// kind.
func isK3s(fields map[string]any) bool {
	return fields["kind"] == nil && fields["apiVersion"] == nil &&
		slices.ContainsFunc(k3sKeys, func(key string) bool { return fields[key] != nil })
}

// k3sConfig reads a config.yaml.
func (r *reader) k3sConfig(fields map[string]any, where string) error {
	k := k3s{name: "k3s", where: where}
	if fields["cni"] != nil || strings.Contains(where, "rke2") {
		k.name = "rke2"
	}
	var others []string
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		value := fields[key]
		switch strings.TrimSuffix(key, "+") {
		case "kube-proxy-arg":
			args, err := texts(value)
			if err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
			k.args = append(k.args, args...)
		case "cluster-cidr":
			ranges, err := texts(value)
			if err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
			k.cluster = strings.Join(ranges, ",")
		case "disable-kube-proxy":
			if value != false {
				return fmt.Errorf("it has disable-kube-proxy: %v: %s runs no kube-proxy", value, k.name)
			}
		default:
			others = append(others, key)
		}
	}
	if len(others) > 0 {
		r.ignore(where, strings.Join(others, ", "), "they were ignored",
			"They are settings of "+k.name+", not of its kube-proxy.")
	}
	return r.takeK3s(k)
}

// texts returns the texts of a list, or the only one.
func texts(value any) ([]string, error) {
	list, ok := value.([]any)
	if !ok {
		list = []any{value}
	}
	var all []string
	for _, v := range list {
		s, ok := v.(string)
		if !ok {
			return nil, fmt.Errorf("it is %v: want a text or a list of texts", v)
		}
		all = append(all, s)
	}
	return all, nil
}

// k3sCommand reads a command line of k3s or RKE2.
func (r *reader) k3sCommand(words []string, where string) error {
	k := k3s{name: path.Base(words[0]), where: where, line: true}
	others := []string{words[0]}
	for i := 1; i < len(words); i++ {
		name, value, valued := strings.Cut(words[i], "=")
		switch name {
		case "--kube-proxy-arg", "--cluster-cidr":
			if !valued && i+1 == len(words) {
				return fmt.Errorf("%s: %s has no value", where, name)
			}
			if !valued {
				i++
				value = words[i]
			}
			if name == "--kube-proxy-arg" {
				k.args = append(k.args, value)
			} else {
				k.cluster = strings.TrimPrefix(k.cluster+","+value, ",")
			}
		case "--disable-kube-proxy":
			if value != "false" {
				return fmt.Errorf("%s has --disable-kube-proxy: %s runs no kube-proxy", where, k.name)
			}
		default:
			if wholeVariable.MatchString(words[i]) {
				r.Where = where
				return r.unset(words[i])
			}
			others = append(others, words[i])
		}
	}
	r.ignore(where, strings.Join(others, " "), "it was ignored",
		"These words are of "+k.name+", not of its kube-proxy.")
	return r.takeK3s(k)
}

// takeK3s joins the command line and the file of k3s.
func (r *reader) takeK3s(k k3s) error {
	old := r.k3s
	if old == nil {
		r.k3s = &k
		return nil
	}
	if old.line == k.line {
		return fmt.Errorf("%s is a second configuration of %s, beside %s: pass one at a "+
			"time", k.where, k.name, old.where)
	}
	line, file := *old, k
	if k.line {
		line, file = k, *old
	}
	if len(line.args) > 0 && len(file.args) > 0 {
		r.ignore(file.where, "kube-proxy-arg "+strings.Join(file.args, " "), "it has no effect",
			"The command line replaces the list of the file.")
		file.args = nil
	}
	if line.cluster != "" && file.cluster != "" {
		r.ignore(file.where, "cluster-cidr "+file.cluster, "it has no effect", "The command line replaces it.")
		file.cluster = ""
	}
	line.args, line.cluster = append(line.args, file.args...), line.cluster+file.cluster
	if file.name == "rke2" {
		line.name = file.name
	}
	r.k3s = &line
	return nil
}

// k3sArguments makes a command line of what k3s or RKE2 gives to its kube-proxy: its own values,
// unless kube-proxy-arg replaces them.
func (r *reader) k3sArguments() error {
	if r.k3s == nil {
		return nil
	}
	k := *r.k3s
	r.Place.Distribution = k.name
	cluster := k.cluster
	if cluster == "" {
		cluster = "10.42.0.0/16"
	}
	given := map[string]bool{}
	var words []string
	for _, a := range k.args {
		a = strings.TrimLeft(a, "-")
		name, _, _ := strings.Cut(a, "=")
		given[name] = true
		words = append(words, "--"+a)
	}
	for _, own := range [][2]string{{"cluster-cidr", cluster}, {"healthz-bind-address", "127.0.0.1"},
		{"proxy-mode", "iptables"}} {
		switch name, value := own[0], own[1]; {
		case given["config"]:
		case !given[name]:
			words = append(words, "--"+name+"="+value)
			r.add(Same, k.where, k.name+" sets --"+name+"="+value, "The input has no other value.",
				"Check cluster-cidr if this is an agent: servers set it.")
		case name == "cluster-cidr" && k.cluster != "":
			r.ignore(k.where, "cluster-cidr "+k.cluster, "it has no effect for the proxy", "kube-proxy-arg replaces "+
				"it.")
		}
	}
	if err := r.arguments(words, k.where); err != nil {
		return fmt.Errorf("%s: %w", k.where, err)
	}
	return nil
}
