package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
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

// readImage is an archive as a runtime reads it: by the specification alone, with every digest and size checked.
type readImage struct {
	t     *testing.T
	files map[string][]byte
	order []string
	index struct {
		SchemaVersion int
		MediaType     string
		Manifests     []descriptor
	}
}

func openImage(t *testing.T, file string) *readImage {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := &readImage{t: t, files: map[string][]byte{}}
	for tr := tar.NewReader(f); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		r.files[h.Name] = body
		r.order = append(r.order, h.Name)
	}
	if got := string(r.files["oci-layout"]); got != `{"imageLayoutVersion":"1.0.0"}` {
		t.Fatalf("oci-layout is %q", got)
	}
	r.parse("index.json", r.files["index.json"], &r.index)
	return r
}

func (r *readImage) parse(what string, body []byte, into any) {
	r.t.Helper()
	if err := json.Unmarshal(body, into); err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
}

// blob returns what a descriptor names.
func (r *readImage) blob(d descriptor) []byte {
	r.t.Helper()
	hexed, ok := strings.CutPrefix(d.Digest, "sha256:")
	body, there := r.files["blobs/sha256/"+hexed]
	if sum := sha256.Sum256(body); !ok || !there || int64(len(body)) != d.Size || hex.EncodeToString(sum[:]) != hexed {
		r.t.Fatalf("blob %+v: %d bytes, there: %v", d, len(body), there)
	}
	return body
}

// readPlatform is what a runtime makes of the image for one platform.
type readPlatform struct {
	manifest manifest
	config   imageConfig
	size     int64 // of its layers, compressed
	files    tree  // what they give, one over the other
	headers  []*tar.Header
}

// tags returns the image's tags by what they end in after the version: "" and -minimal.
func (r *readImage) tags() map[string]descriptor {
	r.t.Helper()
	all := map[string]descriptor{}
	for _, d := range r.index.Manifests {
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
	if len(all) != 2 || len(r.index.Manifests) != 2 {
		r.t.Fatalf("tags %v, want two, one of them %s", all, minimal)
	}
	return all
}

// name returns the name of a tag, as containerd calls it.
func (r *readImage) name(tag string) string {
	r.t.Helper()
	return r.tags()[tag].Annotations["io.containerd.image.name"]
}

// platform returns the image of a tag for an architecture.
func (r *readImage) platform(tag, arch string) readPlatform {
	r.t.Helper()
	d := r.tags()[tag]
	if d.MediaType != typeIndex {
		r.t.Fatalf("tag %q is of type %s", tag, d.MediaType)
	}
	var platforms index
	r.parse("index of "+tag, r.blob(d), &platforms)
	for _, m := range platforms.Manifests {
		if m.Platform == nil || m.Platform.OS != "linux" || m.MediaType != typeManifest {
			r.t.Fatalf("tag %q has %+v", tag, m)
		}
		if m.Platform.Architecture != arch {
			continue
		}
		p := readPlatform{files: tree{}}
		r.parse("manifest of "+tag, r.blob(m), &p.manifest)
		r.parse("configuration of "+tag, r.blob(p.manifest.Config), &p.config)
		for i, l := range p.manifest.Layers {
			p.size += l.Size
			r.addLayer(&p, r.blob(l), p.config.RootFS.DiffIDs[i])
		}
		return p
	}
	r.t.Fatalf("tag %q has nothing for %s", tag, arch)
	return readPlatform{}
}

func (r *readImage) addLayer(p *readPlatform, packed []byte, diffID string) {
	r.t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		r.t.Fatal(err)
	}
	plain, err := io.ReadAll(zip)
	if err != nil {
		r.t.Fatal(err)
	}
	if sum := sha256.Sum256(plain); "sha256:"+hex.EncodeToString(sum[:]) != diffID {
		r.t.Errorf("a layer is not what the configuration says: %s", diffID)
	}
	files, err := readTar(bytes.NewReader(plain))
	if err != nil {
		r.t.Fatal(err)
	}
	for name, f := range files {
		p.files[name] = f
	}
	for tr := tar.NewReader(bytes.NewReader(plain)); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			r.t.Fatal(err)
		}
		p.headers = append(p.headers, h)
	}
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
