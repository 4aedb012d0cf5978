package ui

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"time"

	"kube-proxy/debug/inspect"
)

//go:embed static
var static embed.FS

//go:embed templates
var layouts embed.FS

// asset is a file that pages load.
type asset struct {
	kind, tag string // tag is the ETag
	text      []byte
}

var kinds = map[string]string{
	".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// assets are the files of folder static, by their paths.
func assets() map[string]asset {
	all := map[string]asset{}
	files, err := fs.ReadDir(static, "static")
	if err != nil {
		panic(fmt.Sprintf("ui: %v", err)) // the files are part of the program
	}
	for _, f := range files {
		name := path.Join("static", f.Name())
		text, err := static.ReadFile(name)
		if err != nil {
			panic(fmt.Sprintf("ui: %v", err))
		}
		sum := sha256.Sum256(text)
		all[name] = asset{kinds[path.Ext(name)], `"` + hex.EncodeToString(sum[:8]) + `"`, text}
	}
	return all
}

// serve sends the file, unless the browser has it.
func (a asset) serve(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Cache-Control", "no-cache") // revalidate: another version of the program may answer
	head.Set("ETag", a.tag)
	if r.Header.Get("If-None-Match") == a.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	send(w, r, http.StatusOK, a.kind, a.text)
}

// templates are the pages.
func templates() *template.Template {
	return template.Must(template.New("").Funcs(template.FuncMap{
		"visible": visible, "took": took, "clock": clock, "moment": moment,
		"int": count[int], "uint": count[uint64], "plural": plural, "tracelink": traceLink,
		"routes":   func(f inspect.Frontend) string { return routesSay(&f) },
		"endclass": func(e inspect.Endpoint) string { return endClass(&e) }, "endstate": endState, "kind": kindWords,
		"span":        func(seconds int) string { return took(time.Duration(seconds) * time.Second) },
		"servicename": func(port string) string { return inspect.ParseName(port).String() },
		"ago":         func(from, to time.Time) string { return took(to.Sub(from)) },
	}).ParseFS(layouts, "templates/*.html"))
}

// clock writes the time of day, moment the date too.
func clock(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.Local().Format("15:04:05.000")
}

func moment(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.Local().Format("2006-01-02 15:04:05")
}
