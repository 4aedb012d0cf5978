package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"time"
)

// blob is a part of an image, named by its digest.
type blob struct {
	digest string // "sha256:…"
	body   []byte
}

func newBlob(body []byte) blob {
	sum := sha256.Sum256(body)
	return blob{"sha256:" + hex.EncodeToString(sum[:]), body}
}

// layer is files, compressed.
type layer struct {
	blob
	diffID string // the digest of what is not compressed
}

// pack makes a layer of files. Equal trees and times make equal bytes: names are in order, owners are root, and the time is when.
func (t tree) pack(when time.Time) (layer, error) {
	var packed bytes.Buffer
	zip, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return layer{}, err
	}
	plain := sha256.New()
	w := tar.NewWriter(io.MultiWriter(zip, plain))
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
			return layer{}, fmt.Errorf("pack /%s: %w", name, err)
		}
		if _, err := w.Write(f.body); err != nil {
			return layer{}, fmt.Errorf("pack /%s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return layer{}, err
	}
	if err := zip.Close(); err != nil {
		return layer{}, err
	}
	return layer{newBlob(packed.Bytes()), "sha256:" + hex.EncodeToString(plain.Sum(nil))}, nil
}
