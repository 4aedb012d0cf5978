package migrate

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"kube-proxy/internal/nearest"
)

// MostBytes is how much of a file is read: a ConfigMap has at most 1 MiB.
const MostBytes = 4 << 20

// Input is a file.
type Input struct {
	Name string
	Data []byte
	// Flags are a command line, in place of Data.
	Flags []string
}

// Proxy is how another proxy is started.
type Proxy struct {
	// Args are its command line, without the program; Filled has values that Kubernetes fills in,
	// such as $(NODE_NAME).
	Args, Filled []string
	// Where says where the command line is from; "" without one.
	Where string
	// File is the configuration, nil for none, and FileWhere its source.
	File      []byte
	FileWhere string
	// Pod is the pod that runs it; nil if none was given.
	Pod *pod
	// Cilium is the ConfigMap of Cilium; nil if none was given.
	Cilium map[string]string
	// Passed are objects without relation to the proxy, as "ServiceAccount kube-system/kube-proxy".
	Passed []string
}

// object has the fields that all objects have, and those of the relevant ones.
type object struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   metadata          `json:"metadata"`
	Data       map[string]string `json:"data"`
	Items      []any             `json:"items"`
	Spec       struct {
		pod
		Template *struct {
			Spec pod `json:"spec"`
		} `json:"template"`
	} `json:"spec"`
}

type metadata struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

func (o object) String() string {
	name := strings.TrimPrefix(o.Metadata.Namespace+"/"+o.Metadata.Name, "/")
	return strings.TrimSpace(o.Kind + " " + name)
}

// pod is a PodSpec, as far as it matters.
type pod struct {
	HostNetwork  bool              `json:"hostNetwork"`
	Containers   []container       `json:"containers"`
	Volumes      []volume          `json:"volumes"`
	NodeSelector map[string]string `json:"nodeSelector"`
}

type container struct {
	Name            string   `json:"name"`
	Image           string   `json:"image"`
	Command         []string `json:"command"`
	Args            []string `json:"args"`
	SecurityContext *struct {
		Privileged   *bool `json:"privileged"`
		Capabilities *struct {
			Add []string `json:"add"`
		} `json:"capabilities"`
	} `json:"securityContext"`
	VolumeMounts []struct {
		Name      string `json:"name"`
		MountPath string `json:"mountPath"`
	} `json:"volumeMounts"`
}

type volume struct {
	Name      string `json:"name"`
	ConfigMap *struct {
		Name string `json:"name"`
	} `json:"configMap"`
}

// reader collects the contents of the files.
type reader struct {
	Proxy
	configMaps []object
	podName    string
}

// Read reads the files. Each error has the file, and its fault.
func Read(inputs []Input) (*Proxy, error) {
	var r reader
	for _, in := range inputs {
		if err := r.input(in); err != nil {
			return nil, fmt.Errorf("%s: %w", in.Name, err)
		}
	}
	if err := r.together(); err != nil {
		return nil, err
	}
	return &r.Proxy, nil
}

var documents = regexp.MustCompile(`(?m)^---(?:[ \t].*)?\r?$`)

func (r *reader) input(in Input) error {
	switch {
	case in.Flags != nil:
		return r.arguments(in.Flags, in.Name)
	case len(bytes.TrimSpace(in.Data)) == 0:
		return errors.New("it is empty: " + want)
	case len(in.Data) > MostBytes:
		return fmt.Errorf("it is larger than %d MiB", MostBytes>>20)
	case bytes.IndexByte(in.Data, 0) >= 0 || !utf8.Valid(in.Data):
		return errors.New("it is not text: " + want)
	}
	if line, ok := commandLine(string(in.Data)); ok {
		return r.arguments(split(line), in.Name)
	}
	for i, doc := range documents.Split(string(in.Data), -1) {
		if len(strings.TrimSpace(withoutComments(doc))) == 0 {
			continue
		}
		if err := r.document([]byte(doc), in.Name); err != nil {
			if i > 0 {
				return fmt.Errorf("document %d: %w", i+1, err)
			}
			return err
		}
	}
	return nil
}

const want = "want a ConfigMap with config.conf, a KubeProxyConfiguration, a DaemonSet or Pod of kube-proxy, " +
	"Cilium's ConfigMap, or a command line"

var comments = regexp.MustCompile(`(?m)^\s*#.*$`)

func withoutComments(s string) string { return comments.ReplaceAllString(s, "") }

func (r *reader) document(doc []byte, name string) error {
	var root any
	if err := yaml.Unmarshal(doc, &root); err != nil {
		return fmt.Errorf("it is neither YAML nor a command line: %w", err)
	}
	return r.value(root, doc, name)
}

// value reads one object. doc is its text, if it is a separate document.
func (r *reader) value(root any, doc []byte, name string) error {
	fields, ok := root.(map[string]any)
	if !ok {
		return fmt.Errorf("it is not a mapping of fields to values: %s", want)
	}
	if kind, _ := fields["kind"].(string); kind == "KubeProxyConfiguration" {
		if doc == nil {
			var err error
			if doc, err = yaml.Marshal(root); err != nil {
				return err
			}
		}
		return r.configuration(doc, name)
	}
	data, err := yaml.Marshal(root)
	if err != nil {
		return err
	}
	var o object
	if err := yaml.Unmarshal(data, &o); err != nil {
		return fmt.Errorf("it is not a valid object: %s",
			strings.TrimPrefix(err.Error(), "error unmarshaling JSON: while decoding JSON: "))
	}
	switch {
	case o.Kind == "":
		return fmt.Errorf("it has no kind: %s", want)
	case strings.HasSuffix(o.Kind, "List"):
		for i, item := range o.Items {
			if err := r.value(item, nil, name); err != nil {
				return fmt.Errorf("items[%d]: %w", i, err)
			}
		}
		return nil
	case o.Kind == "ConfigMap":
		return r.configMap(o)
	case o.Kind == "DaemonSet" && o.Spec.Template != nil:
		return r.pod(o, o.Spec.Template.Spec)
	case o.Kind == "Pod":
		return r.pod(o, o.Spec.pod)
	case slices.Contains([]string{"Deployment", "StatefulSet", "ReplicaSet", "Job", "CronJob", "DaemonSet"}, o.Kind):
		return fmt.Errorf("it is a %s: a kube-proxy runs on every node, as a DaemonSet with a template or as static "+
			"Pods: %s", o.Kind, want)
	}
	if like := nearest.DidYouMean(o.Kind, slices.Values([]string{"ConfigMap", "DaemonSet", "KubeProxyConfiguration",
		"Pod"}), ""); like != "" {
		return fmt.Errorf("kind %s is unknown%s", o.Kind, like)
	}
	r.Passed = append(r.Passed, o.String())
	return nil
}

func (r *reader) configuration(doc []byte, where string) error {
	if r.File != nil {
		return fmt.Errorf("it has a second KubeProxyConfiguration, beside that of %s: pass one at a time", r.FileWhere)
	}
	r.File, r.FileWhere = doc, where
	return nil
}

// configMap takes a ConfigMap if it is of a proxy.
func (r *reader) configMap(o object) error {
	_, replaces := o.Data["kube-proxy-replacement"]
	if replaces || o.Metadata.Name == "cilium-config" {
		if r.Cilium != nil {
			return fmt.Errorf("it has a second ConfigMap of Cilium, %s", o)
		}
		r.Cilium = o.Data
		return nil
	}
	r.configMaps = append(r.configMaps, o)
	if key := keyOf(o); key != "" {
		return r.configuration([]byte(o.Data[key]), o.String()+", key "+key)
	}
	return nil
}

// keyOf returns the key of a ConfigMap that holds a configuration: config.conf, or a key whose
// value declares itself as one; "" without one.
func keyOf(o object) string {
	if o.Data["config.conf"] != "" {
		return "config.conf"
	}
	for _, key := range slices.Sorted(maps.Keys(o.Data)) {
		if strings.Contains(o.Data[key], "KubeProxyConfiguration") {
			return key
		}
	}
	return ""
}

// pod takes the pod of a proxy.
func (r *reader) pod(o object, p pod) error {
	i := slices.IndexFunc(p.Containers, container.proxy)
	if i < 0 && len(p.Containers) == 1 && strings.Contains(o.Metadata.Name, "kube-proxy") {
		i = 0
	}
	switch {
	case i < 0:
		return fmt.Errorf("%s has no container that runs kube-proxy: it has %s", o, names(p.Containers))
	case p.NodeSelector["kubernetes.io/os"] == "windows":
		r.Passed = append(r.Passed, o.String()+", for Windows")
		return nil
	case r.Pod != nil:
		return fmt.Errorf("%s is a second pod of kube-proxy, beside %s: pass one at a time", o, r.podName)
	}
	c := p.Containers[i]
	p.Containers[0], p.Containers[i] = p.Containers[i], p.Containers[0]
	r.Pod, r.podName = &p, o.String()
	return r.arguments(c.line(), fmt.Sprintf("%s, container %s", o, c.Name))
}

func names(all []container) string {
	list := make([]string, len(all))
	for i, c := range all {
		list[i] = c.Name
	}
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

// program matches the proxy's program, with any path.
var program = regexp.MustCompile(`(?:^|/)kube-proxy(?:\.exe)?$`)

// proxy reports whether a container runs a kube-proxy.
func (c container) proxy() bool {
	return c.Name == "kube-proxy" || slices.ContainsFunc(c.line(), program.MatchString)
}

// may reports whether the container, which is not privileged, has a capability, named without CAP_.
func (c container) may(capability string) bool {
	return c.SecurityContext != nil && c.SecurityContext.Capabilities != nil &&
		slices.ContainsFunc(c.SecurityContext.Capabilities.Add, func(s string) bool {
			return strings.EqualFold(s, "ALL") || strings.EqualFold(strings.TrimPrefix(strings.ToUpper(s), "CAP_"),
				capability)
		})
}

// shellLine matches the option of a shell whose value is a command line: -c, also with other
// letters, such as -ec.
var shellLine = regexp.MustCompile(`^-[a-z]*c$`)

// line returns the whole command line of a container; that of a shell is parsed.
func (c container) line() []string {
	all := slices.Concat(c.Command, c.Args)
	for i, a := range all {
		if shellLine.MatchString(a) && i+1 < len(all) {
			return split(all[i+1])
		}
	}
	return all
}

// filledIn matches the placeholders that Kubernetes, a shell or systemd replaces.
var filledIn = regexp.MustCompile(`\$[({A-Za-z_]`)

// arguments reads the words of a command line: those after the program, up to a shell operator.
func (r *reader) arguments(words []string, where string) error {
	if r.Where != "" {
		return fmt.Errorf("it has a second command line, beside that of %s: pass one at a time", r.Where)
	}
	r.Where = where
	if i := slices.IndexFunc(words, program.MatchString); i >= 0 {
		words = words[i+1:]
	} else if i := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "--") }); i > 0 {
		words = words[i:] // hyperkube proxy, a wrapper
	}
	for i := 0; i < len(words); i++ {
		w := words[i]
		if strings.ContainsAny(w[:min(1, len(w))], "|;&><") || len(w) > 1 && w[0] >= '0' && w[0] <= '9' && w[1] == '>' {
			break
		}
		name, _, valued := strings.Cut(w, "=")
		apart := !valued && i+1 < len(words) && !strings.HasPrefix(words[i+1], "--") // its value is the next word
		switch {
		case strings.HasPrefix(w, "--") && (filledIn.MatchString(w) || normal(name) == "--hostname-override" || apart &&
			filledIn.MatchString(words[i+1])):
			if apart {
				i++
				w += "=" + words[i]
			}
			r.Filled = append(r.Filled, w)
		case w == "":
		default:
			r.Args = append(r.Args, w)
		}
	}
	return nil
}

// normal writes a flag's name as it is printed (G2).
func normal(name string) string {
	return "--" + strings.ReplaceAll(strings.TrimPrefix(name, "--"), "_", "-")
}

// together brings the files together, when all are read.
func (r *reader) together() error {
	if r.Where == "" && r.File == nil && r.Cilium == nil {
		switch {
		case len(r.configMaps) > 0:
			o := r.configMaps[0]
			keys := cmp.Or(strings.Join(slices.Sorted(maps.Keys(o.Data)), ", "), "no keys")
			return fmt.Errorf("%s has no config.conf, and no other key with a KubeProxyConfiguration: it has %s", o,
				keys)
		case len(r.Passed) > 0:
			return fmt.Errorf("no proxy configuration in %s: %s", strings.Join(r.Passed, ", "), want)
		}
		return errors.New("empty input: " + want)
	}
	if r.Cilium != nil && (r.Where != "" || r.File != nil) {
		return errors.New("the input has both Cilium's ConfigMap and a kube-proxy: pass one at a time")
	}
	config := ""
	for i, a := range r.Args {
		if name, value, _ := strings.Cut(a, "="); normal(name) == "--config" {
			if config = value; config == "" && i+1 < len(r.Args) {
				config = r.Args[i+1]
			}
		}
	}
	if config != "" && r.File == nil {
		return fmt.Errorf("%s: --config=%s: this file is not in the input%s", r.Where, config, r.Pod.hint(config))
	}
	if config == "" && r.File != nil && r.Where != "" {
		return fmt.Errorf("%s has no --config, so it does not use the configuration of %s: pass one of them", r.Where,
			r.FileWhere)
	}
	for _, o := range r.configMaps {
		if keyOf(o) == "" {
			r.Passed = append(r.Passed, o.String())
		}
	}
	return nil
}

// hint describes how to get a file from a ConfigMap.
func (p *pod) hint(file string) string {
	if p == nil {
		return ""
	}
	for _, v := range p.Volumes {
		for _, m := range p.Containers[0].VolumeMounts {
			if v.ConfigMap != nil && m.Name == v.Name && strings.HasPrefix(file, m.MountPath) {
				return fmt.Sprintf(", it is in the ConfigMap %s: give that too (kubectl -n kube-system get configmap "+
					"%[1]s -o yaml)", v.ConfigMap.Name)
			}
		}
	}
	return ""
}

var (
	// flagFirst matches text that begins as a command line does: with a flag, or with the program.
	flagFirst = regexp.MustCompile(`^(?:--[a-zA-Z]|(?:\S*/)?(?:kube-proxy|hyperkube)(?:\.exe)?(?:\s|$))`)
	// assigned matches lines of environment files and of units of systemd.
	assigned = regexp.MustCompile(`(?m)^\s*(?:export\s+)?(?:ExecStart|` +
		`[A-Z_]*(?:KUBE|PROXY|DAEMON)[A-Z_]*(?:ARGS|OPTS|FLAGS|ARG))=((?:.*\\\r?\n)*.*)$`)
)

// commandLine returns the command line in a text: the text itself, or the value in an environment
// file or a systemd unit.
func commandLine(text string) (string, bool) {
	plain := strings.TrimSpace(withoutComments(text))
	if flagFirst.MatchString(plain) {
		return plain, true
	}
	var parts []string
	for _, m := range assigned.FindAllStringSubmatch(plain, -1) {
		if strings.Contains(m[1], "--") {
			parts = append(parts, strings.Trim(strings.TrimSpace(m[1]), `"'`))
		}
	}
	return strings.Join(parts, " "), len(parts) > 0
}

// split parses a line of a shell: words, quotes, and continued lines.
func split(line string) (words []string) {
	var word strings.Builder
	var quote rune
	in, escaped := false, false
	end := func() {
		if in {
			words = append(words, word.String())
			word.Reset()
		}
		in = false
	}
	for _, c := range line {
		switch {
		case escaped:
			escaped = false
			if c != '\n' {
				word.WriteRune(c)
				in = true
			}
		case c == '\\' && quote != '\'':
			escaped = true
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(c)
		case c == '"' || c == '\'':
			quote, in = c, true
		case c == ';' || c == '|' || c == '&': // begins another command, without a blank too
			end()
			word.WriteRune(c)
			in = true
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			end()
		default:
			word.WriteRune(c)
			in = true
		}
	}
	end()
	return words
}
