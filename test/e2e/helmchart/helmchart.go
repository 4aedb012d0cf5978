// Package helmchart renders charts/kube-proxy as `helm template` does, with Helm's own library.
package helmchart

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"kube-proxy/test/e2e/controlplane"
)

// Release has the parameters of an installation.
type Release struct {
	Name, Namespace string
	// Kubernetes is the version of the cluster, as "v1.37.2"; "" is Helm's own.
	Kubernetes string
}

// Folder is the path of charts/kube-proxy.
func Folder() (string, error) {
	root, err := controlplane.Root()
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "..", "..", "charts", "kube-proxy"), nil
}

var load = sync.OnceValues(func() (*chart.Chart, error) {
	folder, err := Folder()
	if err != nil {
		return nil, err
	}
	return loader.Load(folder)
})

// Load returns the chart, which callers must not change.
func Load() (*chart.Chart, error) { return load() }

// Parse reads the YAML of a values file.
func Parse(text string) (map[string]any, error) {
	values, err := chartutil.ReadValues([]byte(text))
	return values, err
}

// Render returns the objects that installing the chart with the values makes, in the order of their
// files, and its notes. Values that the schema or a template refuses are an error that names them.
func Render(release Release, values map[string]any) (objects []*unstructured.Unstructured, notes string, err error) {
	loaded, err := Load()
	if err != nil {
		return nil, "", err
	}
	copied, err := deepCopy(values) // for the library writes into it
	if err != nil {
		return nil, "", err
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	if release.Kubernetes != "" {
		version, err := chartutil.ParseKubeVersion(release.Kubernetes)
		if err != nil {
			return nil, "", err
		}
		capabilities.KubeVersion = *version
	}
	if !chartutil.IsCompatibleRange(loaded.Metadata.KubeVersion, capabilities.KubeVersion.String()) {
		return nil, "", fmt.Errorf("the chart wants Kubernetes %s, and it is %s", loaded.Metadata.KubeVersion,
			capabilities.KubeVersion.String())
	}
	all, err := chartutil.ToRenderValues(loaded, copied, chartutil.ReleaseOptions{
		Name: release.Name, Namespace: release.Namespace, Revision: 1, IsInstall: true}, capabilities)
	if err != nil {
		return nil, "", err
	}
	strict := engine.Engine{Strict: true} // a template that reads a missing value is an error
	files, err := strict.Render(loaded, all)
	if err != nil {
		return nil, "", err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, "NOTES.txt") {
			notes = files[name]
			continue
		}
		more, err := Decode(files[name])
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w\n%s", name, err, files[name])
		}
		objects = append(objects, more...)
	}
	return objects, notes, nil
}

// Decode reads the objects of a YAML file of several documents.
func Decode(text string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	documents := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		object := map[string]any{}
		if err := yaml.UnmarshalStrict(document, &object); err != nil {
			return nil, err
		}
		if len(object) > 0 {
			objects = append(objects, &unstructured.Unstructured{Object: object})
		}
	}
}

func deepCopy(values map[string]any) (map[string]any, error) {
	data, err := json.Marshal(values)
	if err != nil {
		return nil, err
	}
	copied := map[string]any{}
	return copied, json.NewDecoder(bytes.NewReader(data)).Decode(&copied)
}
