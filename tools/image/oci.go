package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// layer makes a layer of files. Equal trees and times make equal bytes: names are in order, owners
// are root, and the time is when.
func (t tree) layer(when time.Time) (v1.Layer, error) {
	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	for _, name := range t.names() {
		f := t[name]
		h := &tar.Header{Name: name, Mode: f.mode, ModTime: when, Typeflag: tar.TypeReg, Size: int64(len(f.body))}
		switch {
		case f.dir:
			h.Typeflag, h.Name = tar.TypeDir, name+"/"
		case f.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.link
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("pack /%s: %w", name, err)
		}
		if _, err := w.Write(f.body); err != nil {
			return nil, fmt.Errorf("pack /%s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(plain.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithCompressionLevel(gzip.BestCompression),
		tarball.WithCompressedCaching, tarball.WithMediaType(types.OCILayer))
}

// part is one layer of an image, with its creator.
type part struct {
	layer v1.Layer
	by    string
}

// newImage makes an image for one platform, with its labels as annotations too.
func newImage(p v1.Platform, created time.Time, config v1.Config, parts []part) (v1.Image, error) {
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, part := range parts {
		var err error
		img, err = mutate.Append(img, mutate.Addendum{Layer: part.layer, MediaType: types.OCILayer,
			History: v1.History{Created: v1.Time{Time: created}, CreatedBy: part.by}})
		if err != nil {
			return nil, fmt.Errorf("add a layer for %s: %w", p, err)
		}
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.Created, file.OS, file.Architecture, file.Config = v1.Time{Time: created}, p.OS, p.Architecture, config
	img, err = mutate.ConfigFile(img, file)
	if err != nil {
		return nil, fmt.Errorf("configure the image for %s: %w", p, err)
	}
	return mutate.Annotations(img, config.Labels).(v1.Image), nil
}

// indexOf makes an index of images, or of other indexes.
func indexOf(adds ...mutate.IndexAddendum) v1.ImageIndex {
	return mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), adds...)
}

// tagged returns the entry of a tag, such as localhost/kube-proxy:v1, for the index of the archive.
func tagged(name string, index v1.ImageIndex) mutate.IndexAddendum {
	return mutate.IndexAddendum{Add: index, Descriptor: v1.Descriptor{Annotations: map[string]string{
		"io.containerd.image.name":          name, // the name for ctr image import
		"org.opencontainers.image.ref.name": name[strings.LastIndex(name, ":")+1:],
	}}}
}

// writeArchive writes an OCI image layout as an archive, by way of a folder in dir; equal images
// and times make equal bytes.
func writeArchive(out io.Writer, index v1.ImageIndex, dir string, when time.Time) error {
	dir, err := os.MkdirTemp(dir, ".layout-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if _, err := layout.Write(dir, index); err != nil {
		return err
	}
	w := tar.NewWriter(out)
	files := os.DirFS(dir)
	err = fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, ModTime: when, Typeflag: tar.TypeReg,
			Size: int64(len(body))}); err != nil {
			return err
		}
		_, err = w.Write(body)
		return err
	})
	if err != nil {
		return err
	}
	return w.Close()
}
