// Command site turns the pages of docs into a static site. The list in docs/README.md is the order
// of the pages. The site is plain files without links to other hosts: one page of HTML for each
// page of Markdown, the pictures, the figures as a file, and a search that runs in the browser.
package main

import (
	"bytes"
	_ "embed"
	"flag"
	"fmt"
	"html/template"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

func main() {
	out := flag.String("o", "bin/site", "the folder to write to")
	source := flag.String("source", "", "the address at which the files of the repository can be read, for links to "+
		"them; without it they are no links")
	flag.Parse()
	if err := build(os.DirFS("docs"), *out, *source); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
	fmt.Println(filepath.Join(*out, "index.html"))
}

// contents is the page with the list of the others.
const contents = "README.md"

// section is a part of the contents.
type section struct {
	Title string
	Pages []*page
}

// page is one page of the site.
type page struct {
	File, Title    string // File is its name below docs
	Body           template.HTML
	Headings       []heading // of the second level, for the page's table of contents
	Previous, Next *page
	Listed         bool // in the contents, not a decision
}

// heading is a heading with its anchor.
type heading struct{ ID, Text string }

// URL is the page's address, below the root of the site.
func (p *page) URL() string {
	if p.File == contents {
		return "index.html"
	}
	return strings.TrimSuffix(p.File, ".md") + ".html"
}

// Up returns the path from the page to the root of the site.
func (p *page) Up() string { return strings.Repeat("../", strings.Count(p.File, "/")) }

// build writes the site of the pages in docs to a folder.
func build(docs fs.FS, out, source string) error {
	first, sections, err := order(docs)
	if err != nil {
		return err
	}
	pages := []*page{first}
	for _, s := range sections {
		pages = append(pages, s.Pages...)
	}
	for i, p := range pages[1:] {
		p.Previous, pages[i].Next = pages[i], p
	}
	decisions, err := fs.Glob(docs, "adr/*.md")
	if err != nil {
		return err
	}
	for _, name := range decisions {
		pages = append(pages, &page{File: name})
	}
	find := search{Words: map[string][]int{}}
	for _, p := range pages {
		if err := p.read(docs, source, &find); err != nil {
			return fmt.Errorf("docs/%s: %w", p.File, err)
		}
		var b bytes.Buffer
		err := layout.Execute(&b, map[string]any{"Page": p, "Sections": sections, "First": first,
			"Style": template.CSS(style)})
		if err == nil {
			err = write(filepath.Join(out, p.URL()), b.Bytes())
		}
		if err != nil {
			return fmt.Errorf("docs/%s: %w", p.File, err)
		}
	}
	index, err := find.script()
	if err == nil {
		err = write(filepath.Join(out, "search.js"), index)
	}
	if err != nil {
		return err
	}
	pictures, err := fs.Glob(docs, "pictures/*")
	if err != nil {
		return err
	}
	for _, name := range append(pictures, "performance.json") {
		data, err := fs.ReadFile(docs, name)
		if err == nil {
			err = write(filepath.Join(out, name), data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func write(name string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, data, 0o644)
}

// item is a page in the contents: "- [Title](file.md): summary".
var item = regexp.MustCompile(`^- \[([^\]]+)\]\(([a-z0-9/-]+\.md)\)`)

// order reads the contents: sections with their pages.
func order(docs fs.FS) (first *page, sections []section, err error) {
	text, err := fs.ReadFile(docs, contents)
	if err != nil {
		return nil, nil, err
	}
	for line := range strings.Lines(string(text)) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			sections = append(sections, section{Title: strings.TrimSpace(title)})
		} else if m := item.FindStringSubmatch(line); m != nil {
			if len(sections) == 0 {
				return nil, nil, fmt.Errorf("docs/%s: %s stands before the first section", contents, m[2])
			}
			s := &sections[len(sections)-1]
			s.Pages = append(s.Pages, &page{File: m[2], Title: m[1], Listed: true})
		}
	}
	return &page{File: contents, Title: "Contents"}, sections, nil
}

var markdown = goldmark.New(goldmark.WithExtensions(extension.GFM),
	goldmark.WithParserOptions(parser.WithAutoHeadingID()))

// read converts the page's text to HTML and adds its words to the search. Links between pages
// become links between their HTML; links to other files of the repository lead to source, or become
// text.
func (p *page) read(docs fs.FS, source string, find *search) error {
	in, err := fs.ReadFile(docs, p.File)
	if err != nil {
		return err
	}
	tree := markdown.Parser().Parse(text.NewReader(in))
	var away []*ast.Link
	err = ast.Walk(tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.Heading:
			if !entering {
				break
			}
			id, _ := n.AttributeString("id")
			h := heading{string(id.([]byte)), plain(n, in)}
			if n.Level == 1 && p.Title == "" {
				p.Title = h.Text
			}
			if n.Level == 2 {
				p.Headings = append(p.Headings, h)
			}
			find.section(p, h)
		case *ast.Text:
			if entering {
				find.text(n.Value(in))
			}
		case *ast.FencedCodeBlock:
			if entering {
				find.text(n.Lines().Value(in))
			}
		case *ast.Link:
			if entering && !p.lead(n, source) {
				away = append(away, n)
			}
		}
		return ast.WalkContinue, nil
	})
	if err != nil {
		return err
	}
	for _, n := range away { // its text stays
		for c := n.FirstChild(); c != nil; c = n.FirstChild() {
			n.Parent().InsertBefore(n.Parent(), n, c)
		}
		n.Parent().RemoveChild(n.Parent(), n)
	}
	var b bytes.Buffer
	if err := markdown.Renderer().Render(&b, in, tree); err != nil {
		return err
	}
	p.Body = template.HTML(b.String()) // pages of the repository; raw HTML in them is left out
	return nil
}

// lead rewrites a link for the site; false if the site does not have its target.
func (p *page) lead(n *ast.Link, source string) bool {
	to, anchor, _ := strings.Cut(string(n.Destination), "#")
	if strings.Contains(to, ":") || to == "" {
		return true
	}
	if anchor != "" {
		anchor = "#" + anchor
	}
	file := path.Join(path.Dir(p.File), to)
	switch {
	case strings.HasPrefix(file, "../"): // outside of docs
		if source == "" {
			return false
		}
		to = strings.TrimSuffix(source, "/") + "/" + strings.TrimPrefix(file, "../")
	case file == "adr":
		to = p.Up() + "architecture.html"
	case path.Base(file) == contents:
		to = strings.TrimSuffix(to, contents) + "index.html"
	default:
		to = strings.TrimSuffix(to, ".md")
		if strings.HasSuffix(file, ".md") {
			to += ".html"
		}
	}
	n.Destination = []byte(to + anchor)
	return true
}

var (
	//go:embed style.css
	style string
	//go:embed page.html
	pageHTML string
	layout   = template.Must(template.New("page").Parse(pageHTML))
)
