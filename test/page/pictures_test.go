//go:build linux

package page

import (
	"bytes"
	"cmp"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// maxBytes bounds a picture in docs/pictures.
const maxBytes = 150_000

// keep writes a screenshot to docs/pictures with its 256 most frequent colours: a page has few.
func keep(t *testing.T, name string, shot []byte) {
	t.Helper()
	full, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		t.Fatal(err)
	}
	if b := full.Bounds(); b.Dx() < 800 || b.Dy() < 500 {
		t.Errorf("%s: %v is no page", name, b)
	}
	small := reduce(full)
	var out bytes.Buffer
	e := png.Encoder{CompressionLevel: png.BestCompression}
	if err := e.Encode(&out, small); err != nil {
		t.Fatal(err)
	}
	if out.Len() > maxBytes {
		t.Errorf("%s: %d bytes, want %d at most", name, out.Len(), maxBytes)
	}
	if len(small.Palette) < 10 {
		t.Errorf("%s: %d colours: nothing is on it", name, len(small.Palette))
	}
	if !*pictures {
		return
	}
	if err := os.WriteFile(filepath.Join("..", "..", "docs", "pictures", name), out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// reduce returns the picture with its 256 most frequent colours; other colours become the nearest
// of these.
func reduce(full image.Image) *image.Paletted {
	b := full.Bounds()
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(full.At(x, y)).(color.RGBA) }
	counts := map[color.RGBA]int{}
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			counts[at(x, y)]++
		}
	}
	most := slices.SortedFunc(maps.Keys(counts), func(a, b color.RGBA) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a.R, b.R), cmp.Compare(a.G, b.G),
			cmp.Compare(a.B, b.B))
	})
	var palette color.Palette
	for _, c := range most[:min(len(most), 256)] {
		palette = append(palette, c)
	}
	index := map[color.RGBA]uint8{}
	small := image.NewPaletted(b, palette)
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			c := at(x, y)
			i, known := index[c]
			if !known {
				i = uint8(palette.Index(c))
				index[c] = i
			}
			small.SetColorIndex(x, y, i)
		}
	}
	return small
}
