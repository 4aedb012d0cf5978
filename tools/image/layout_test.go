package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// imageFlag is the archive that the tests of a whole image look at.
var imageFlag = flag.String("image", "", "the archive that `make image` wrote, whose content and work are tested")

// builtImage returns the archive under test.
func builtImage(t *testing.T) string {
	t.Helper()
	if *imageFlag == "" {
		t.Skip("no -image: `make test-image` builds one, and runs this")
	}
	file, err := filepath.Abs(*imageFlag)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// readImage is an archive as a runtime reads it. TestImage checks every digest and size.
type readImage struct {
	t     *testing.T
	index v1.ImageIndex
	top   *v1.IndexManifest
}

func openImage(t *testing.T, file string) *readImage {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files, err := readTar(f)
	if err != nil {
		t.Fatal(err)
	}
	dir, folders := t.TempDir(), tree{}
	for name, f := range files { // the archive has no entries for folders
		if err := folders.add(name, f); err != nil {
			t.Fatal(err)
		}
	}
	readPlatform{files: folders}.unpack(t, dir)
	r := &readImage{t: t}
	r.index, err = layout.ImageIndexFromPath(dir)
	if err == nil {
		r.top, err = r.index.IndexManifest()
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// readPlatform is the image for one platform as a runtime sees it.
type readPlatform struct {
	manifest *v1.Manifest
	config   *v1.ConfigFile
	size     int64 // of its layers, compressed
	files    tree  // contents of the layers, one over the other
	headers  []*tar.Header
}

// tags returns the image's tags by their suffix after the version: "" and -minimal.
func (r *readImage) tags() map[string]v1.Descriptor {
	r.t.Helper()
	all := map[string]v1.Descriptor{}
	for _, d := range r.top.Manifests {
		_, tag, _ := strings.Cut(d.Annotations["io.containerd.image.name"], ":")
		if tag != d.Annotations["org.opencontainers.image.ref.name"] || tag == "" {
			r.t.Errorf("names of a tag differ: %v", d.Annotations)
		}
		suffix := ""
		if strings.HasSuffix(tag, minimal) {
			suffix = minimal
		}
		all[suffix] = d
	}
	if len(all) != 2 || len(r.top.Manifests) != 2 {
		r.t.Fatalf("tags %v, want two, one of them %s", all, minimal)
	}
	return all
}

// name returns the name of a tag, as containerd calls it.
func (r *readImage) name(tag string) string {
	r.t.Helper()
	return r.tags()[tag].Annotations["io.containerd.image.name"]
}

// manifests returns those of a tag, one for each platform.
func (r *readImage) manifests(tag string) (v1.ImageIndex, []v1.Descriptor) {
	r.t.Helper()
	index, err := r.index.ImageIndex(r.tags()[tag].Digest)
	if err != nil {
		r.t.Fatal(err)
	}
	all, err := index.IndexManifest()
	if err != nil {
		r.t.Fatal(err)
	}
	return index, all.Manifests
}

// platform returns the image of a tag for an architecture of Linux.
func (r *readImage) platform(tag, arch string) readPlatform {
	r.t.Helper()
	return r.on(tag, v1.Platform{OS: "linux", Architecture: arch})
}

func (r *readImage) on(tag string, want v1.Platform) readPlatform {
	r.t.Helper()
	index, manifests := r.manifests(tag)
	i := slices.IndexFunc(manifests, func(m v1.Descriptor) bool { return m.Platform.Equals(want) })
	if i < 0 {
		r.t.Fatalf("tag %q has nothing for %s", tag, want)
	}
	img, err := index.Image(manifests[i].Digest)
	p := readPlatform{files: tree{}}
	if err == nil {
		p.manifest, err = img.Manifest()
	}
	if err == nil {
		p.config, err = img.ConfigFile()
	}
	layers, e := img.Layers()
	err = errors.Join(err, e)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, l := range layers {
		size, err := l.Size()
		if err == nil {
			p.size += size
			err = p.addLayer(l)
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
	return p
}

func (p *readPlatform) addLayer(l v1.Layer) error {
	open, err := l.Uncompressed()
	if err != nil {
		return err
	}
	defer open.Close()
	plain, err := io.ReadAll(open)
	if err != nil {
		return err
	}
	files, err := readTar(bytes.NewReader(plain))
	maps.Copy(p.files, files)
	for tr := tar.NewReader(bytes.NewReader(plain)); err == nil; {
		var h *tar.Header
		h, err = tr.Next()
		if err == nil {
			p.headers = append(p.headers, h)
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// unpack writes the files of a platform to a folder.
func (p readPlatform) unpack(t *testing.T, dir string) {
	t.Helper()
	for _, name := range p.files.names() {
		f, to := p.files[name], filepath.Join(dir, name)
		var err error
		switch {
		case f.dir:
			err = os.MkdirAll(to, 0o755)
		case f.link != "":
			err = os.Symlink(f.link, to)
		default:
			err = os.WriteFile(to, f.body, os.FileMode(f.mode))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
