package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every page is in the contents, once, and every entry is an existing page.
func TestContents(t *testing.T) {
	docs := os.DirFS("../../docs")
	_, sections, err := order(docs)
	if err != nil {
		t.Fatal(err)
	}
	listed := []string{contents}
	for _, s := range sections {
		if len(s.Pages) == 0 {
			t.Errorf("the section %q has no page", s.Title)
		}
		for _, p := range s.Pages {
			if slices.Contains(listed, p.File) {
				t.Errorf("docs/%s is in the contents twice", p.File)
			}
			listed = append(listed, p.File)
		}
	}
	pages, err := fs.Glob(docs, "*.md")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(listed)
	if !slices.Equal(listed, pages) {
		t.Errorf("the contents have\n%v\nthere are\n%v", listed, pages)
	}
}

var (
	leads  = regexp.MustCompile(`(?:href|src)="([^"]*)"`)
	anchor = regexp.MustCompile(`id="([^"]+)"`)
)

// Each link in the site has an existing page, picture or heading as its target, and nothing is
// loaded from other sites.
func TestSite(t *testing.T) {
	out := t.TempDir()
	if err := build(os.DirFS("../../docs"), out, ""); err != nil {
		t.Fatal(err)
	}
	anchors, links := map[string]map[string]bool{}, map[string][]string{}
	err := filepath.WalkDir(out, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		file, err := filepath.Rel(out, name)
		anchors[file] = map[string]bool{"": true}
		if err != nil || filepath.Ext(file) != ".html" {
			return err
		}
		text, err := os.ReadFile(name)
		for _, m := range anchor.FindAllStringSubmatch(string(text), -1) {
			anchors[file][m[1]] = true
		}
		for _, m := range leads.FindAllStringSubmatch(string(text), -1) {
			links[file] = append(links[file], m[1])
		}
		if strings.Count(string(text), "<script") != 1 || strings.Contains(string(text), `src="http`) {
			t.Errorf("%s runs or fetches something", file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(links) < 20 {
		t.Fatalf("the site has %d pages", len(links))
	}
	for file, all := range links {
		for _, link := range all {
			if strings.HasPrefix(link, "https://") {
				continue
			}
			to, name, _ := strings.Cut(link, "#")
			target := file
			if to != "" {
				target = filepath.Join(filepath.Dir(file), to)
			}
			if there := anchors[target]; there == nil {
				t.Errorf("%s leads to %s, which is not there", file, link)
			} else if !there[name] {
				t.Errorf("%s leads to %s, which has no such heading", file, link)
			}
		}
	}
}

// The pages form one chain from the first to the last.
func TestOrder(t *testing.T) {
	out := t.TempDir()
	if err := build(os.DirFS("../../docs"), out, ""); err != nil {
		t.Fatal(err)
	}
	_, sections, err := order(os.DirFS("../../docs"))
	if err != nil {
		t.Fatal(err)
	}
	next := regexp.MustCompile(`rel="next" href="([^"]*)"`)
	at := "index.html"
	for _, s := range sections {
		for _, p := range s.Pages {
			text, err := os.ReadFile(filepath.Join(out, at))
			if err != nil {
				t.Fatal(err)
			}
			if m := next.FindSubmatch(text); m == nil || string(m[1]) != p.URL() {
				t.Fatalf("after %s comes %q, want %s", at, m, p.URL())
			}
			at = p.URL()
		}
	}
}
