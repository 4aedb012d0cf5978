package main

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// The types of the OCI image specification 1.1, as far as they are used here.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

type (
	descriptor struct {
		MediaType   string            `json:"mediaType"`
		Digest      string            `json:"digest"`
		Size        int64             `json:"size"`
		Platform    *platform         `json:"platform,omitempty"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	platform struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
	}
	index struct {
		SchemaVersion int               `json:"schemaVersion"`
		MediaType     string            `json:"mediaType"`
		Manifests     []descriptor      `json:"manifests"`
		Annotations   map[string]string `json:"annotations,omitempty"`
	}
	manifest struct {
		SchemaVersion int               `json:"schemaVersion"`
		MediaType     string            `json:"mediaType"`
		Config        descriptor        `json:"config"`
		Layers        []descriptor      `json:"layers"`
		Annotations   map[string]string `json:"annotations,omitempty"`
	}
	imageConfig struct {
		Created      string `json:"created"`
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
		Config       struct {
			Env        []string          `json:"Env"`
			Entrypoint []string          `json:"Entrypoint"`
			Labels     map[string]string `json:"Labels"`
		} `json:"config"`
		RootFS struct {
			Type    string   `json:"type"`
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
		History []history `json:"history"`
	}
	history struct {
		Created   string `json:"created"`
		CreatedBy string `json:"created_by"`
	}
)

// layout is an OCI image layout that is being made.
type layout struct {
	blobs map[string][]byte
	tags  []descriptor
}

func (l *layout) put(mediaType string, b blob) descriptor {
	if l.blobs == nil {
		l.blobs = map[string][]byte{}
	}
	l.blobs[b.digest] = b.body
	return descriptor{MediaType: mediaType, Digest: b.digest, Size: int64(len(b.body))}
}

func (l *layout) putJSON(mediaType string, v any) (descriptor, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return descriptor{}, fmt.Errorf("write %s: %w", mediaType, err)
	}
	return l.put(mediaType, newBlob(body)), nil
}

// part is one layer of an image, and what made it.
type part struct {
	layer
	by string
}

// image adds an image for one architecture and returns its manifest.
func (l *layout) image(arch string, created time.Time, labels map[string]string, parts []part) (descriptor, error) {
	c := imageConfig{Created: created.UTC().Format(time.RFC3339), Architecture: arch, OS: "linux"}
	c.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	c.Config.Entrypoint = []string{"/" + binaryPath}
	c.Config.Labels = labels
	c.RootFS.Type = "layers"
	m := manifest{SchemaVersion: 2, MediaType: typeManifest, Annotations: labels}
	for _, p := range parts {
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, p.diffID)
		c.History = append(c.History, history{c.Created, p.by})
		m.Layers = append(m.Layers, l.put(typeLayer, p.blob))
	}
	var err error
	if m.Config, err = l.putJSON(typeConfig, c); err != nil {
		return descriptor{}, err
	}
	d, err := l.putJSON(typeManifest, m)
	d.Platform = &platform{arch, "linux"}
	return d, err
}

// tag adds an image for several architectures under a name, such as localhost/kube-proxy:v1, and returns its digest.
func (l *layout) tag(name string, labels map[string]string, images []descriptor) (string, error) {
	d, err := l.putJSON(typeIndex, index{SchemaVersion: 2, MediaType: typeIndex, Manifests: images, Annotations: labels})
	if err != nil {
		return "", err
	}
	d.Annotations = map[string]string{
		"io.containerd.image.name":          name, // what ctr image import calls it
		"org.opencontainers.image.ref.name": name[strings.LastIndex(name, ":")+1:],
	}
	l.tags = append(l.tags, d)
	return d.Digest, nil
}

// write writes the layout as an archive; equal layouts and times make equal bytes.
func (l *layout) write(out io.Writer, when time.Time) error {
	top, err := json.Marshal(index{SchemaVersion: 2, MediaType: typeIndex, Manifests: l.tags})
	if err != nil {
		return fmt.Errorf("write index.json: %w", err)
	}
	w := tar.NewWriter(out)
	add := func(name string, body []byte) error {
		h := &tar.Header{Name: name, Mode: 0o644, ModTime: when, Typeflag: tar.TypeReg, Size: int64(len(body))}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err := w.Write(body)
		return err
	}
	if err := add("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	if err := add("index.json", top); err != nil {
		return err
	}
	for _, digest := range slices.Sorted(maps.Keys(l.blobs)) {
		if err := add("blobs/"+strings.Replace(digest, ":", "/", 1), l.blobs[digest]); err != nil {
			return err
		}
	}
	return w.Close()
}
