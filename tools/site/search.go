package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/yuin/goldmark/ast"
)

// search is the index of the site's search, which search.js reads: the sections of all pages, and
// for each word the sections that contain it, in ascending order.
type search struct {
	Sections [][3]string      `json:"sections"` // title of the page, heading, address
	Words    map[string][]int `json:"words"`
}

// section begins a section: later text belongs to it.
func (s *search) section(p *page, h heading) {
	s.Sections = append(s.Sections, [3]string{p.Title, h.Text, p.URL() + "#" + h.ID})
	s.text([]byte(p.Title + " " + h.Text))
}

// word is a search term: a name with its dashes, a flag, an id, a number.
var word = regexp.MustCompile(`[\pL\pN][\pL\pN_.-]*[\pL\pN]`)

// text adds words to the last section.
func (s *search) text(text []byte) {
	at := len(s.Sections) - 1
	if at < 0 {
		return
	}
	for _, w := range word.FindAll(bytes.ToLower(text), -1) {
		in := s.Words[string(w)]
		if len(in) == 0 || in[len(in)-1] != at {
			s.Words[string(w)] = append(in, at)
		}
	}
}

// script returns the script of the search, with the index.
func (s *search) script() ([]byte, error) {
	most := len(s.Sections) / 4 // a word in more sections is too common to search for
	for word, in := range s.Words {
		if len(in) > most && most > 0 {
			delete(s.Words, word)
		}
	}
	index, err := json.Marshal(s)
	return fmt.Appendf(nil, "const index = %s;\n%s", index, script), err
}

//go:embed search.js
var script string

// plain returns the text of a node without its markup.
func plain(n ast.Node, in []byte) string {
	var b strings.Builder
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		if t, ok := c.(*ast.Text); ok {
			b.Write(t.Value(in))
		} else {
			b.WriteString(plain(c, in))
		}
	}
	return b.String()
}
