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

	"kube-proxy/config"
	"kube-proxy/internal/nearest"
	"kube-proxy/mode"
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
	// Place says where the cluster has the proxy.
	Place Place
	// Said are statements about input that is not part of the configuration.
	Said []Statement
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
		Selector *struct {
			MatchLabels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		Template *struct {
			Spec pod `json:"spec"`
		} `json:"template"`
	} `json:"spec"`
}

type metadata struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace"`
	Labels    map[string]string `json:"labels"`
}

func (o object) String() string {
	name := strings.TrimPrefix(o.Metadata.Namespace+"/"+o.Metadata.Name, "/")
	return strings.TrimSpace(o.Kind + " " + name)
}

// pod is a PodSpec, as far as it matters.
type pod struct {
	HostNetwork    bool              `json:"hostNetwork"`
	InitContainers []container       `json:"initContainers"`
	Containers     []container       `json:"containers"`
	Volumes        []volume          `json:"volumes"`
	NodeSelector   map[string]string `json:"nodeSelector"`
}

type container struct {
	Name    string   `json:"name"`
	Image   string   `json:"image"`
	Command []string `json:"command"`
	Args    []string `json:"args"`
	Env     []struct {
		Name  string  `json:"name"`
		Value *string `json:"value"`
	} `json:"env"`
	SecurityContext *struct {
		Privileged   *bool `json:"privileged"`
		Capabilities *struct {
			Add []string `json:"add"`
		} `json:"capabilities"`
	} `json:"securityContext"`
	VolumeMounts []struct {
		Name      string `json:"name"`
		MountPath string `json:"mountPath"`
		SubPath   string `json:"subPath"`
	} `json:"volumeMounts"`
}

type volume struct {
	Name      string           `json:"name"`
	ConfigMap *configMapVolume `json:"configMap"`
	Projected *struct {
		Sources []struct {
			ConfigMap *configMapVolume `json:"configMap"`
		} `json:"sources"`
	} `json:"projected"`
}

type configMapVolume struct {
	Name  string `json:"name"`
	Items []struct {
		Key  string `json:"key"`
		Path string `json:"path"`
	} `json:"items"`
}

// reader collects the contents of the files.
type reader struct {
	Proxy
	modes mode.List
	flags map[string]config.FlagUse

	inputs     []string // names
	configMaps []object
	files      []configFile // KubeProxyConfigurations
	passed     []string
	podName    string
	namespace  string // of the pod
	service    *unit
	scripts    []script
	k3s        *k3s

	// The variables of environment files, in order, with their values and files, and whether a
	// command line has them.
	varNames []string
	vars     map[string]string
	varFrom  map[string]string
	varUsed  map[string]bool
}

// script is the text of a shell.
type script struct{ text, where string }

// configFile is a KubeProxyConfiguration, from a ConfigMap unless configMap is "".
type configFile struct {
	data           []byte
	where          string
	configMap, key string
}

func (r *reader) add(sev Severity, about, differs, why, do string) {
	r.Said = append(r.Said, Statement{sev, about, differs, why, do})
}

// ignore reports a part of the input that does not configure the proxy.
func (r *reader) ignore(where, text, differs, why string) {
	r.add(Same, where, text+": "+differs, why, "Nothing.")
}

// Read reads the files. Every word of them is used, reported, or an error, which has the file and
// the fault.
func Read(modes mode.List, inputs []Input) (*Proxy, error) {
	r := reader{modes: modes, flags: config.FlagUses(modes), vars: map[string]string{}, varFrom: map[string]string{},
		varUsed: map[string]bool{}}
	for _, in := range inputs {
		r.inputs = append(r.inputs, in.Name)
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
	text := string(in.Data)
	if unitText.MatchString(text) {
		return r.unit(text, in.Name)
	}
	if commandText.MatchString(strings.TrimSpace(withoutComments(text))) {
		r.scripts = append(r.scripts, script{text, in.Name})
		return nil
	}
	if all, err := environment(text); err == nil {
		for _, a := range all {
			if err := r.variable(a.name, a.value, in.Name); err != nil {
				return err
			}
		}
		return nil
	} else if !errors.Is(err, errNoFile) {
		return err
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

const want = "want a ConfigMap or file with a KubeProxyConfiguration, a DaemonSet or Pod of kube-proxy, a command " +
	"line, script, environment file or systemd unit, config.yaml of k3s or RKE2, a Cluster of kops, or Cilium's " +
	"ConfigMap"

var comments = regexp.MustCompile(`(?m)^[ \t]*#[^!\n].*$|^[ \t]*#$`)

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
		r.files = append(r.files, configFile{data: doc, where: name})
		return nil
	}
	if isK3s(fields) {
		return r.k3sConfig(fields, name)
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
	case o.Kind == "Cluster" && slices.Contains(kopsVersions, o.APIVersion):
		return r.kops(fields, o.String())
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
	r.pass(o.String())
	return nil
}

// pass reports an object without relation to the proxy.
func (r *reader) pass(o string) {
	r.passed = append(r.passed, o)
	r.add(Same, o, "it was ignored", "It does not configure the proxy.", "Nothing.")
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
	for _, key := range slices.Sorted(maps.Keys(o.Data)) {
		if key == "config.conf" && o.Data[key] != "" || strings.Contains(o.Data[key], "KubeProxyConfiguration") {
			r.files = append(r.files,
				configFile{[]byte(o.Data[key]), o.String() + ", key " + key, o.Metadata.Name, key})
		}
	}
	return nil
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
		r.pass(o.String() + ", for Windows")
		return nil
	case r.Pod != nil:
		return fmt.Errorf("%s is a second pod of kube-proxy, beside %s: pass one at a time", o, r.podName)
	}
	c := p.Containers[i]
	p.Containers[0], p.Containers[i] = p.Containers[i], p.Containers[0]
	r.Pod, r.podName, r.namespace = &p, o.String(), o.Metadata.Namespace
	r.Place.pod(o, p)
	if others := slices.Concat(p.InitContainers, p.Containers[1:]); len(others) > 0 {
		r.ignore(o.String(), "containers "+names(others), "they were ignored", "They do not run the proxy.")
	}
	r.ignore(o.String(), "fields beside command, args, env, mounts and rights", "they were ignored",
		"They place and start pods. Commands that keep the DaemonSet keep them, and the chart has its own.")
	return r.inPod(c, fmt.Sprintf("%s, container %s", o, c.Name))
}

// inPod reads the command line of a container. Kubernetes replaces $(NAME) by variables of the
// container; a shell in it also sees them.
func (r *reader) inPod(c container, where string) error {
	words := slices.Concat(c.Command, c.Args)
	for _, e := range c.Env {
		if e.Value == nil {
			continue
		}
		for i, w := range words {
			words[i] = strings.ReplaceAll(w, "$("+e.Name+")", *e.Value)
		}
		if i := slices.IndexFunc(words, shellLine.MatchString); i >= 0 {
			if err := r.variable(e.Name, *e.Value, where); err != nil {
				return err
			}
		}
	}
	if len(words) == 0 {
		words = []string{"kube-proxy"} // the image's own
	}
	return r.arguments(words, where)
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

// proxy reports whether a container runs a kube-proxy.
func (c container) proxy() bool {
	return c.Name == "kube-proxy" || slices.ContainsFunc(slices.Concat(c.Command, c.Args), program.MatchString)
}

// may reports whether the container, which is not privileged, has a capability, named without CAP_.
func (c container) may(capability string) bool {
	return c.SecurityContext != nil && c.SecurityContext.Capabilities != nil &&
		slices.ContainsFunc(c.SecurityContext.Capabilities.Add, func(s string) bool {
			return strings.EqualFold(s, "ALL") || strings.EqualFold(strings.TrimPrefix(strings.ToUpper(s), "CAP_"),
				capability)
		})
}

// together brings the files together, when all are read.
func (r *reader) together() error {
	for _, s := range r.scripts {
		if err := r.script(s.text, s.where); err != nil {
			return err
		}
	}
	if r.service != nil {
		if err := r.startUnit(); err != nil {
			return err
		}
	}
	if err := r.variables(); err != nil {
		return err
	}
	if err := r.k3sArguments(); err != nil {
		return err
	}
	if r.Where == "" && len(r.files) == 0 && r.Cilium == nil {
		switch {
		case len(r.configMaps) > 0:
			o := r.configMaps[0]
			keys := cmp.Or(strings.Join(slices.Sorted(maps.Keys(o.Data)), ", "), "no keys")
			return fmt.Errorf("%s has no config.conf, and no other key with a KubeProxyConfiguration: it has %s", o,
				keys)
		case len(r.passed) > 0:
			return fmt.Errorf("no proxy configuration in %s: %s", strings.Join(r.passed, ", "), want)
		case len(r.varNames) > 0:
			return fmt.Errorf("%s sets only %s, without flags: pass the unit or script that names them too",
				r.varFrom[r.varNames[0]], strings.Join(r.varNames, ", "))
		}
		return errors.New("empty input: " + want)
	}
	if r.Cilium != nil && (r.Where != "" || len(r.files) > 0) {
		return errors.New("the input has both Cilium's ConfigMap and a kube-proxy: pass one at a time")
	}
	if err := r.choose(r.configFlag()); err != nil {
		return err
	}
	for _, o := range r.configMaps {
		if o.Metadata.Name != r.Place.ConfigMap {
			r.pass(o.String())
			continue
		}
		others := slices.DeleteFunc(slices.Sorted(maps.Keys(o.Data)), func(k string) bool { return k == r.Place.Key })
		if len(others) > 0 {
			r.ignore(o.String(), "other keys: "+strings.Join(others, ", "), "they were ignored",
				"They are not the proxy's configuration.")
		}
	}
	r.Place.settle()
	return nil
}

// configFlag returns the value of --config, "" without one.
func (r *reader) configFlag() (path string) {
	for i, a := range r.Args {
		if name, value, valued := strings.Cut(a, "="); normal(name) == "--config" {
			if path = value; !valued && i+1 < len(r.Args) {
				path = r.Args[i+1]
			}
		}
	}
	return path
}

// choose finds the file of --config: that of the ConfigMap which the pod mounts there, or the only
// one of the input.
func (r *reader) choose(path string) error {
	r.Place.Path = path
	if path == "" {
		if len(r.files) > 0 && r.Where != "" {
			return fmt.Errorf("%s has no --config, so it does not use the configuration of %s: pass one of them",
				r.Where, r.files[0].where)
		}
	} else if name, key := r.Pod.mounted(path); name != "" {
		i := slices.IndexFunc(r.configMaps, func(o object) bool { return o.Metadata.Name == name })
		if i < 0 {
			return fmt.Errorf("%s: --config=%s: this file is not in the input, it is in the ConfigMap %s: give that "+
				"too (kubectl -n %s get configmap %[3]s -o yaml)", r.Where, path, name, cmp.Or(r.namespace, "default"))
		}
		data, ok := r.configMaps[i].Data[key]
		if !ok {
			return fmt.Errorf("%s: --config=%s: %s has no key %s: it has %s", r.Where, path, r.configMaps[i], key,
				cmp.Or(strings.Join(slices.Sorted(maps.Keys(r.configMaps[i].Data)), ", "), "no keys"))
		}
		r.files = []configFile{{[]byte(data), r.configMaps[i].String() + ", key " + key, name, key}}
	}
	switch {
	case len(r.files) > 1:
		return fmt.Errorf("there are two KubeProxyConfigurations, of %s and of %s: pass one at a time, or the "+
			"DaemonSet too, which names one", r.files[0].where, r.files[1].where)
	case len(r.files) == 1:
		f := r.files[0]
		r.File, r.FileWhere, r.Place.ConfigMap, r.Place.Key = f.data, f.where, f.configMap, f.key
	case path != "":
		return fmt.Errorf("%s: --config=%s: this file is not in the input", r.Where, path)
	}
	return nil
}

// mounted returns the ConfigMap and the key that a pod mounts as a file; "" for none.
func (p *pod) mounted(file string) (name, key string) {
	if p == nil {
		return "", ""
	}
	longest := 0
	for _, m := range p.Containers[0].VolumeMounts {
		at := strings.TrimSuffix(m.MountPath, "/")
		below, inside := strings.CutPrefix(file, at+"/")
		switch {
		case m.SubPath != "" && file == m.MountPath:
			below = m.SubPath
		case m.SubPath != "" || !inside:
			continue
		}
		i := slices.IndexFunc(p.Volumes, func(v volume) bool { return v.Name == m.Name })
		if i < 0 || len(at) < longest {
			continue
		}
		if n, k := p.Volumes[i].key(below); n != "" {
			name, key, longest = n, k, len(at)
		}
	}
	return name, key
}

// key returns the ConfigMap and the key of a file in a volume; "" if no ConfigMap has it.
func (v volume) key(file string) (name, key string) {
	all := []*configMapVolume{v.ConfigMap}
	if v.Projected != nil {
		for _, s := range v.Projected.Sources {
			all = append(all, s.ConfigMap)
		}
	}
	for _, c := range all {
		if c == nil {
			continue
		}
		if len(c.Items) == 0 {
			return c.Name, file
		}
		for _, item := range c.Items {
			if item.Path == file {
				return c.Name, item.Key
			}
		}
	}
	return "", ""
}
