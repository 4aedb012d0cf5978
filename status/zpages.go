package status

import (
	"fmt"
	"maps"
	"mime"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// component is our name on the pages.
const component = "kube-proxy"

// object holds the first fields of the structured forms of the pages.
type object struct {
	Kind       string `json:"kind"`
	APIVersion string `json:"apiVersion"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
}

func newObject(kind, version string) object {
	o := object{Kind: kind, APIVersion: apiGroup + "/" + version}
	o.Metadata.Name = component
	return o
}

type flagzObject struct {
	object
	Flags map[string]string `json:"flags,omitempty"`
}

type statuszObject struct {
	object
	StartTime        time.Time `json:"startTime"`
	UptimeSeconds    int64     `json:"uptimeSeconds"`
	GoVersion        string    `json:"goVersion"`
	BinaryVersion    string    `json:"binaryVersion"`
	EmulationVersion string    `json:"emulationVersion,omitempty"`
	Paths            []string  `json:"paths,omitempty"`
}

// apiGroup is the group of the structured forms, apiVersions their versions.
const apiGroup = "config.k8s.io"

var apiVersions = []string{"v1alpha1", "v1beta1"}

func (s *Server) flagz() http.Handler {
	text := func() string {
		all := s.cfg.Flags()
		var b strings.Builder
		for _, name := range slices.Sorted(maps.Keys(all)) {
			fmt.Fprintf(&b, "%s=%s\n", name, all[name])
		}
		return b.String()
	}
	return page("flagz", "Flagz", text, func(version string) any {
		return flagzObject{newObject("Flagz", version), s.cfg.Flags()}
	})
}

func (s *Server) statusz(paths []string) http.Handler {
	binary := strings.TrimPrefix(s.cfg.Version, "v")
	emulation := binary // without the patch version
	if major, rest, ok := strings.Cut(binary, "."); ok {
		minor, _, _ := strings.Cut(rest, ".")
		emulation = major + "." + minor
	}
	text := func() string {
		up := time.Since(s.cfg.Started).Truncate(time.Second)
		text := fmt.Sprintf("Started: %s\nUp: %d hr %02d min %02d sec\nGo version: %s\nBinary version: %s\n"+
			"Emulation version: %s\nPaths: %s\n",
			s.cfg.Started.UTC().Format(time.UnixDate), int(up.Hours()), int(up.Minutes())%60, int(up.Seconds())%60,
			runtime.Version(), binary, emulation, strings.Join(paths, " "))
		for _, name := range slices.Sorted(maps.Keys(s.cfg.Machine)) {
			text += name + ": " + s.cfg.Machine[name] + "\n"
		}
		return text
	}
	return page("statusz", "Statusz", text, func(version string) any {
		return statuszObject{newObject("Statusz", version), s.cfg.Started.UTC().Truncate(time.Second),
			int64(time.Since(s.cfg.Started).Seconds()), runtime.Version(), binary, emulation, paths}
	})
}

// page serves a page for people as text, and for programs that name kind, group and version as JSON
// (HT-25).
func page(name, kind string, text func() string, structured func(version string) any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		version, ok := negotiate(r.Header.Values("Accept"), kind)
		switch {
		case !ok:
			plain(w, http.StatusNotAcceptable, fmt.Sprintf("want text/plain, or application/json;as=%s;v=%s;g=%s\n",
				kind, strings.Join(apiVersions, "|"), apiGroup))
		case version == "":
			plain(w, http.StatusOK, fmt.Sprintf("\n%s %s\nFor people who look for a fault: programs must not rely on "+
				"how this page looks.\n\n%s", component, name, text()))
		default:
			if err := writeJSON(w, "application/json", structured(version)); err != nil {
				plain(w, http.StatusInternalServerError, err.Error()+"\n")
			}
		}
	})
}

// negotiate picks the form with the highest preference: a version means JSON, "" text. Without an
// Accept header any form will do.
func negotiate(accept []string, kind string) (version string, ok bool) {
	best := 0.0
	some := false
	for _, part := range strings.Split(strings.Join(accept, ","), ",") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		some = true
		v, q, good := accepted(part, kind)
		if good && q > best {
			version, ok, best = v, true, q
		}
	}
	if !some {
		return "", true
	}
	return version, ok
}

// accepted returns the form of one part of Accept, and its weight.
func accepted(part, kind string) (version string, q float64, ok bool) {
	media, params, err := mime.ParseMediaType(part)
	if err != nil {
		return "", 0, false
	}
	q = 1
	if text, given := params["q"]; given {
		q, err = strconv.ParseFloat(text, 64)
		if err != nil {
			return "", 0, false
		}
	}
	switch media {
	case "*/*", "text/*", "text/plain":
		return "", q, true
	case "application/json":
		if params["as"] == kind && params["g"] == apiGroup && slices.Contains(apiVersions, params["v"]) {
			return params["v"], q, true
		}
	}
	return "", 0, false
}
