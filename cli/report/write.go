package report

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"time"
)

// File is one file of a report.
type File struct {
	Name string // below the report's folder, with slashes
	Text []byte
}

// Write writes the files into a new archive at name, a tar.gz with one folder. An existing file is
// an error. Only its owner may read the archive.
func Write(name, folder string, now time.Time, files []File) (err error) {
	out, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	defer func() {
		err = errors.Join(err, out.Close())
		if err != nil {
			os.Remove(name)
		}
	}()
	if err := archive(out, folder, now, files); err != nil {
		return fmt.Errorf("write the report %s: %w", name, err)
	}
	return nil
}

func archive(out io.Writer, folder string, now time.Time, files []File) error {
	packed := gzip.NewWriter(out)
	t := tar.NewWriter(packed)
	for _, f := range files {
		header := &tar.Header{Name: path.Join(folder, f.Name), Mode: 0o644, Size: int64(len(f.Text)), ModTime: now}
		if err := t.WriteHeader(header); err != nil {
			return err
		}
		if _, err := t.Write(f.Text); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), packed.Close())
}
