package kubeproxy_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A layer is a group of packages that may import the same layers.
type layer struct {
	name    string
	imports string // layers, its own among them if its packages may import each other; ALL is every one
	holds   string // packages; a/... holds those below a too that no other layer holds
}

// layers is the import policy, for files that are not tests.
//
// DO NOT CHANGE THIS DATA TO FIX BUILDS. It is the design: a build that breaks here has put
// something into the wrong house. A new permission needs a reason that would convince a reader of
// docs/architecture.md. A permission that no import uses fails too.
var layers = []layer{
	{"base", "", `event config/option plane/selfwrites plane/internal/diff internal/addrs internal/bisect internal/fold
		internal/listen internal/nearest internal/once internal/ordered internal/pause internal/plural internal/ratelimit
		internal/rollback internal/scm internal/thread`},
	{"facts", "base", "cluster"},
	{"table", "base table", "lb plane trace"},
	{"rules", "base facts table rules", "policy config/nodecheck"},
	{"failover", "base facts table failover", "failover/..."},
	{"source", "base facts source", "source/..."},
	// How kernel state is encoded and read.
	{"kernel", "base table kernel", `internal/netlink/... internal/kernel internal/sockets
		internal/nft/wire internal/nft/rule`},
	{"mode", "base table kernel mode", "mode internal/xtables"},
	// They observe applied changes, and know no rules.
	{"observer", "base facts table failover kernel mode", "conntrack health debug/changes debug/flows debug/traffic"},
	// They follow packets by what the kernel has, and know no writer.
	{"follow", "base table kernel mode follow", "nodetrace/..."},
	// A plane cannot know what a traffic policy is.
	{"plane", "base table failover kernel mode observer plane", "plane/..."},
	{"engine", "base facts table rules observer", "engine"},
	{"settings", "base table rules source kernel mode engine settings", `config logging status
		internal/system internal/wiring`},
	{"answer", "base facts table rules failover mode observer follow engine answer", "debug/inspect debug/api"},
	{"program", "ALL", "cli/... cmd/..."},
	{"proof", "ALL", "internal/netlab test/... tools/... ."},
}

// only says who may import what, whatever the layers allow: "m < a" means that a may import
// packages whose path starts with m. What is not on a left side is free to all but the pure
// packages; of two that match, the longer one counts. TESTS are the tests of all packages. Together
// with TestPlanesAreApart and the pure packages these are five prohibitions: no plane knows
// another, the middle has no I/O, client-go is in source/kube and the plugin alone, cobra in cli
// and config alone, and no lab serves packets.
const only = `
	# Only these know the types of Kubernetes; tests of test/adversary write objects as a tenant does.
	k8s.io < config, config/option, source/kube, source/manifests, source/convert, cli/kubectl, test/adversary;
	k8s.io/client-go < source/kube, cli/kubectl;
	sigs.k8s.io/yaml < cli, cli/migrate, config, cmd/kube-proxy, tools/release;
	k8s.io/klog < logging, config, source/kube, cli/kubectl;
	k8s.io/component-base < config, source/kube, status;
	github.com/spf13 < config, cli, cli/kubectl, cmd/kube-proxy;
	# The product has one netlink client, internal/netlink; tests look at the kernel by this one.
	github.com/vishvananda/netlink < test/planetest, TESTS;
	github.com/vishvananda/netns < internal/netlab, TESTS;
	# internal/netlab does not trust the client that its users test.
	github.com/mdlayher/netlink < internal/netlink, internal/netlab;
	# The commands selftest and demo build labs.
	kube-proxy/internal/netlab < cli/selftest, test/planetest, tools/demo, tools/worlds, TESTS;
	# Tests attach programs of others by it.
	github.com/cilium/ebpf < plane/ebpf, plane/ebpf/bpf, TESTS;
	# Its types and its text of expressions; messages are those of internal/nft/wire.
	github.com/google/nftables < internal/nft/wire, internal/nft/rule, nodetrace/internal/nft;
`

// pure packages import the standard library and packages of ours that do so too, so that others may
// use them anywhere.
var pure = []string{"cluster", "failover", "lb", "plane", "policy", "trace"}

// badNames are package names that say nothing about the content.
var badNames = []string{"util", "utils", "common", "helper", "helpers", "types", "manager", "managers", "misc"}

const module = "kube-proxy"

// goFile is one parsed file; dir is its folder below the root, with slashes.
type goFile struct {
	dir, path string
	test      bool
	ast       *ast.File
	fset      *token.FileSet
}

// nested reports whether f belongs to another module (test/e2e), which has its own rules for
// imports.
func (f goFile) nested() bool {
	return slices.Contains([]string{"test/e2e", "test/page", "test/monitoring"}, f.dir) ||
		strings.HasPrefix(f.dir, "test/e2e/")
}

// layerOf returns the layer that holds a package: the one that names it, or the one that names the
// closest folder above it.
func layerOf(dir string) *layer {
	var found *layer
	var length int
	for i := range layers {
		for name := range strings.FieldsSeq(layers[i].holds) {
			above, open := strings.CutSuffix(name, "/...")
			if dir == name || open && (dir == above || strings.HasPrefix(dir, above+"/")) && len(above) > length {
				found, length = &layers[i], len(above)
			}
			if dir == name {
				return found
			}
		}
	}
	return found
}

func TestImports(t *testing.T) {
	used, held := map[string]bool{}, map[string]bool{} // "layer layer"; "layer package"
	for _, f := range goFiles(t) {
		if f.nested() || f.test { // tests bring together what the program keeps apart
			continue
		}
		from := layerOf(f.dir)
		if from == nil {
			t.Errorf("%s: no layer of the import policy holds package %s", f.path, f.dir)
			continue
		}
		for name := range strings.FieldsSeq(from.holds) {
			above, open := strings.CutSuffix(name, "/...")
			if f.dir == above || open && strings.HasPrefix(f.dir, above+"/") {
				held[from.name+" "+name] = true
			}
		}
		for _, imp := range importsOf(f) {
			ours, ok := strings.CutPrefix(imp, module+"/")
			if !ok {
				continue
			}
			to := layerOf(ours)
			if to == nil {
				continue // reported at its own files
			}
			used[from.name+" "+to.name] = true
			allowed := strings.Fields(from.imports)
			if !slices.Contains(allowed, to.name) && !slices.Contains(allowed, "ALL") {
				t.Errorf("%s: package %s of layer %s may not import %s of layer %s", f.path, f.dir, from.name, ours,
					to.name)
			}
		}
	}
	for _, l := range layers {
		for to := range strings.FieldsSeq(l.imports) {
			if to != "ALL" && !used[l.name+" "+to] {
				t.Errorf("import policy: layer %s may import layer %s, and does not", l.name, to)
			}
		}
		for name := range strings.FieldsSeq(l.holds) {
			if name != "." && !held[l.name+" "+name] {
				t.Errorf("import policy: layer %s holds %s, which has no package", l.name, name)
			}
		}
	}
}

// TestPlanesAreApart: a plane writes its own kind of kernel state, and no other plane's. What two
// of them need stands in internal or in plane/internal. Packages below a plane's folder are parts
// of it.
func TestPlanesAreApart(t *testing.T) {
	planes := []string{"nftables", "iptables", "ipvs", "ebpf", "userspace", "hns"}
	planeOf := func(dir string) string {
		rest, _ := strings.CutPrefix(dir, "plane/")
		name, _, _ := strings.Cut(rest, "/")
		if rest == dir || !slices.Contains(planes, name) {
			return ""
		}
		return name
	}
	seen := map[string]bool{}
	for _, f := range goFiles(t) {
		of := planeOf(f.dir)
		if of == "" || f.test {
			continue
		}
		seen[of] = true
		for _, imp := range importsOf(f) {
			ours, _ := strings.CutPrefix(imp, module+"/")
			if other := planeOf(ours); other != "" && other != of {
				t.Errorf("%s: plane/%s imports %s: move what both need to internal", f.path, of, ours)
			}
		}
	}
	if !seen["nftables"] || !seen["iptables"] {
		t.Errorf("looked at %v alone", seen)
	}
}

func TestOnly(t *testing.T) {
	may := parsePolicy(t, only)
	used := map[string]bool{} // "what who"
	for _, f := range goFiles(t) {
		if f.nested() {
			continue
		}
		for _, imp := range importsOf(f) {
			first, _, _ := strings.Cut(imp, "/")
			if strings.Contains(first, ".") && slices.Contains(pure, f.dir) {
				t.Errorf("%s imports %s: package %s uses the standard library alone", f.path, imp, f.dir)
			}
			if ours, ok := strings.CutPrefix(imp, module+"/"); ok && !f.test && slices.Contains(pure, f.dir) &&
				!slices.Contains(pure, ours) && !strings.HasPrefix(ours, "internal/") {
				t.Errorf("%s: package %s is pure, and %s is not", f.path, f.dir, ours)
			}
			var closest string
			for prefix := range leftSides(only) {
				if (imp == prefix || strings.HasPrefix(imp, prefix+"/")) && len(prefix) > len(closest) {
					closest = prefix
				}
			}
			switch {
			case closest == "":
			case slices.Contains(may[f.dir], closest):
				used[closest+" "+f.dir] = true
			case f.test && slices.Contains(may["TESTS"], closest):
				used[closest+" TESTS"] = true
			default:
				t.Errorf("%s: package %s may not import %s", f.path, f.dir, imp)
			}
		}
	}
	for who, all := range may {
		for _, what := range all {
			if !used[what+" "+who] {
				t.Errorf("import policy: %s may import %s, and does not", who, what)
			}
		}
	}
}

// wallClocks are the files that may drop the monotonic reading of a time, and why. Ages and
// deadlines need the reading: the wall clock of a node may be stepped.
var wallClocks = map[string]string{
	"cli/report.go":             "shown to people",
	"logging/json.go":           "klog's format",
	"debug/changes/ring.go":     "a number that grows from one process to the next",
	"debug/inspect/changes.go":  "shown to people",
	"debug/inspect/service.go":  "shown to people",
	"engine/changes.go":         "shown to people",
	"engine/config.go":          "compared with times of the API",
	"engine/inbox.go":           "compared with times of the API, shown to people",
	"engine/programming.go":     "compared with times of the API",
	"engine/resolve.go":         "shown to people",
	"health/answer.go":          "answers of probes",
	"source/convert/service.go": "times of the API",
	"source/convert/slice.go":   "times of the API",
	"status/metrics.go":         "values of metrics",
	"status/table.go":           "values of metrics",
	"status/zpages.go":          "shown to people",
}

// TestMonotonicClock: a time that is not only formatted keeps its monotonic reading, so that Sub,
// Before and After compare what no step of the wall clock changes.
func TestMonotonicClock(t *testing.T) {
	strips := []string{"UTC", "Unix", "UnixNano", "UnixMicro", "UnixMilli"}
	seen := map[string]bool{}
	for _, f := range goFiles(t) {
		if f.test || f.nested() || strings.HasPrefix(f.dir, "test/") || strings.HasPrefix(f.dir, "tools/") {
			continue
		}
		formatted := map[ast.Expr]bool{}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if method.Sel.Name == "Format" {
				formatted[method.X] = true
			}
			if formatted[call] || !slices.Contains(strips, method.Sel.Name) {
				return true
			}
			if pkg, ok := method.X.(*ast.Ident); ok && (pkg.Name == "time" || len(call.Args) > 0) { // time.Unix
				return true
			}
			seen[f.path] = true
			if wallClocks[f.path] == "" {
				t.Errorf("%s: %s drops the monotonic reading of a time: compare times as they are, and convert "+
					"them where they are written", f.path, method.Sel.Name)
			}
			return true
		})
	}
	for path := range wallClocks {
		if !seen[path] {
			t.Errorf("%s does not drop the monotonic reading of a time any more: take it out of wallClocks", path)
		}
	}
}

func TestPackageComments(t *testing.T) {
	comments := map[string][]string{}
	for _, f := range goFiles(t) {
		if f.test {
			continue
		}
		if _, seen := comments[f.dir]; !seen {
			comments[f.dir] = nil
		}
		if f.ast.Doc != nil {
			comments[f.dir] = append(comments[f.dir], f.path)
			name := "Package " + f.ast.Name.Name + " "
			if f.ast.Name.Name != "main" && !strings.HasPrefix(f.ast.Doc.Text(), name) {
				t.Errorf("%s: the package comment does not begin with %q", f.path, name)
			}
		}
	}
	for dir, files := range comments {
		if len(files) != 1 {
			t.Errorf("package %s has %d package comments %v, want one", dir, len(files), files)
		}
	}
}

func TestNoInit(t *testing.T) {
	for _, f := range goFiles(t) {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: func init: wire it where it is used", f.path)
			}
		}
	}
}

// sideEffects are the folders with `if` headers that still do something. A folder leaves the list
// with its last one.
var sideEffects = []string{"cli", "debug", "failover", "nodetrace",
	"plane/ebpf", "test/e2e", "tools/bench"}

// The header of an `if` declares variables, and does nothing else: a reader looks for effects in
// statements.
func TestIfHeaders(t *testing.T) {
	left := map[string]bool{}
	for _, f := range goFiles(t) {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			branch, ok := n.(*ast.IfStmt)
			if !ok || branch.Init == nil {
				return true
			}
			if a, ok := branch.Init.(*ast.AssignStmt); ok && a.Tok == token.DEFINE {
				return true
			}
			for _, dir := range sideEffects {
				if f.dir == dir || strings.HasPrefix(f.dir, dir+"/") {
					left[dir] = true
					return true
				}
			}
			t.Errorf("%s: an `if` header has a side effect: make it a statement before", f.fset.Position(branch.Pos()))
			return true
		})
	}
	for _, dir := range sideEffects {
		if !left[dir] {
			t.Errorf("sideEffects: no `if` header in %s has one any more", dir)
		}
	}
}

func TestPackageNames(t *testing.T) {
	for _, f := range goFiles(t) {
		name := strings.TrimSuffix(f.ast.Name.Name, "_test")
		if slices.Contains(badNames, name) || slices.Contains(badNames, path.Base(f.dir)) {
			t.Errorf("%s: a package named %s could hold anything", f.path, name)
		}
		if f.ast.Name.Name != "main" && f.dir != "." && name != path.Base(f.dir) {
			t.Errorf("%s: package %s in folder %s", f.path, name, f.dir)
		}
	}
}

// The tree does not depend on one machine: which registry serves packages and images is set up on
// the machine that builds, and so is the folder of the checkout.
func TestNoRegistryHosts(t *testing.T) {
	checkout := "/work" + "/main"
	hosts := []string{"proxy.golang" + ".org", "sum.golang" + ".org", "deb.debian" + ".org", "archive.ubuntu" + ".com",
		"security.debian" + ".org", "registry.k8s" + ".io", "k8s.gcr" + ".io", "docker" + ".io", "ghcr" + ".io",
		"quay" + ".io",
		"registry.npmjs" + ".org", "pypi" + ".org"}
	for _, name := range files(t, func(string) bool { return true }) {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(content[:min(len(content), 8000)], 0) >= 0 {
			if bytes.HasPrefix(content, []byte("\x7fELF")) && filepath.Ext(name) != ".o" {
				t.Errorf("%s is a program: remove it with git rm", name)
			}
			continue // a binary
		}
		for _, host := range hosts {
			if bytes.Contains(content, []byte(host)) {
				t.Errorf("%s names the registry %s", name, host)
			}
		}
		if bytes.Contains(content, []byte(checkout)) {
			t.Errorf("%s names the checkout of one machine, %s: use $PWD", name, checkout)
		}
	}
}

// mayCite are files and packages whose sentences cite rows of docs/behaviour.md, with the reason.
var mayCite = map[string]string{
	"test/scenario":  "reads scenarios, which cite rows",
	"test/planetest": "has scenarios in its code, and writes docs/conformance.md",
}

// Messages for people cite no rows of docs/behaviour.md, which say nothing to a user (TN-88). A
// string that is nothing but rows is data.
func TestMessagesCiteNoRows(t *testing.T) {
	data := regexp.MustCompile(`^(([A-Z]{2}-\d{2}|EXT)(, )?)+$`)
	found := map[string]bool{}
	for _, f := range goFiles(t) {
		if f.test {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			text, ok := n.(*ast.BasicLit)
			if !ok || text.Kind != token.STRING || data.MatchString(strings.Trim(text.Value, "\"`")) {
				return true
			}
			rows, _ := idsIn(text.Value)
			switch {
			case len(rows) == 0:
			case mayCite[f.path] != "" || mayCite[f.dir] != "":
				found[f.path], found[f.dir] = true, true
			default:
				t.Errorf("%s: a message cites %s: %.100s", f.path, strings.Join(rows, ", "), text.Value)
			}
			return true
		})
	}
	for name := range mayCite {
		if !found[name] {
			t.Errorf("mayCite: %s cites no row", name)
		}
	}
}

// docs/dependencies.md has a reason for each module that go.mod or tools/go.mod requires directly,
// and for no other.
func TestDependencies(t *testing.T) {
	var mod []byte
	for _, name := range []string{"tools/go.mod", "go.mod"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		mod = append(mod, text...)
	}
	page, err := os.ReadFile("docs/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	required := map[string]bool{} // by module: directly
	for _, m := range regexp.MustCompile(`(?m)^(?:require)?\s+(\S+\.\S+/\S+) v\S+( // indirect)?$`).
		FindAllStringSubmatch(string(mod), -1) {
		required[m[1]] = required[m[1]] || m[2] == ""
	}
	reasons := map[string]bool{}
	ours, _, _ := strings.Cut(string(page), "\n`test/e2e` is a module")
	for _, row := range regexp.MustCompile("(?m)^- (`[^:]+): ").FindAllStringSubmatch(ours, -1) {
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			reasons[m[1]] = true
		}
	}
	if len(required) < 10 || len(reasons) < 10 {
		t.Fatalf("found %d modules in go.mod, %d on the page", len(required), len(reasons))
	}
	for m, direct := range required {
		if direct && !reasons[m] {
			t.Errorf("docs/dependencies.md has no reason for %s", m)
		}
	}
	for m := range reasons {
		if _, ok := required[m]; !ok {
			t.Errorf("docs/dependencies.md has a reason for %s, which go.mod does not require", m)
		}
	}
}

// A page that points to a file of the tree points to one that is there.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	seen := 0
	for _, page := range files(t, func(name string) bool { return strings.HasSuffix(name, ".md") }) {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(content), -1) {
			seen++
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s points to %s: %v", page, m[1], err)
			}
		}
	}
	if seen == 0 {
		t.Error("no page has a link")
	}
}

// docs/security.md names the test or the scenario that shows what it says.
func TestSecurityPage(t *testing.T) {
	page, err := os.ReadFile("docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{}
	for _, f := range goFiles(t) {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.test && fn.Recv == nil {
				tests[f.dir+"."+fn.Name.Name] = true
			}
		}
	}
	named := 0
	check := func(dir, name string) {
		named++
		if !tests[dir+"."+name] {
			t.Errorf("docs/security.md names %s.%s, which does not exist", dir, name)
		}
	}
	for _, m := range regexp.MustCompile("`([a-z0-9/-]+)\\.((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(string(page),
		-1) {
		check(m[1], m[2])
	}
	for _, m := range regexp.MustCompile("`([a-z0-9/-]+)\\.\\{([^`}]+)\\}`").FindAllStringSubmatch(string(page), -1) {
		for name := range strings.SplitSeq(m[2], ",") {
			check(m[1], name)
		}
	}
	for _, end := range regexp.MustCompile("(?m)^- .*\\.((?: `[^` ]+`)+)$").FindAllStringSubmatch(string(page), -1) {
		for _, m := range regexp.MustCompile("`([a-z0-9-]+)`").FindAllStringSubmatch(end[1], -1) {
			named++
			if _, err := os.Stat("test/testdata/scenarios/" + m[1] + ".txtar"); err != nil {
				t.Errorf("docs/security.md: %v", err)
			}
		}
	}
	if named < 80 {
		t.Errorf("docs/security.md names %d tests", named)
	}
}

// parsePolicy returns for each right side of the lines the left sides it may import.
func parsePolicy(t *testing.T, text string) map[string][]string {
	t.Helper()
	may := map[string][]string{}
	for _, rule := range rules(text) {
		left, right, ok := strings.Cut(rule, "<")
		if !ok {
			t.Fatalf("import policy: no < in %q", rule)
		}
		for _, to := range fields(right) {
			may[to] = append(may[to], fields(left)...)
		}
	}
	return may
}

func leftSides(text string) map[string]bool {
	all := map[string]bool{}
	for _, rule := range rules(text) {
		left, _, _ := strings.Cut(rule, "<")
		for _, name := range fields(left) {
			all[name] = true
		}
	}
	return all
}

func rules(text string) []string {
	var clean strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") {
			clean.WriteString(line)
		}
	}
	all := strings.Split(clean.String(), ";")
	return slices.DeleteFunc(all, func(s string) bool { return strings.TrimSpace(s) == "" })
}

func fields(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' })
}

func importsOf(f goFile) []string {
	var paths []string
	for _, spec := range f.ast.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil {
			paths = append(paths, p)
		}
	}
	return paths
}

func goFiles(t *testing.T) []goFile {
	t.Helper()
	var all []goFile
	for _, name := range files(t, func(name string) bool { return strings.HasSuffix(name, ".go") }) {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("parse: %v", err)
			continue
		}
		test := strings.HasSuffix(name, "_test.go")
		all = append(all, goFile{filepath.ToSlash(filepath.Dir(name)), name, test, file, fset})
	}
	if len(all) < 10 {
		t.Fatalf("found %d Go files: not the root of the module?", len(all))
	}
	return all
}

// files returns the files of the tree that keep accepts, without build output and git's own files.
func files(t *testing.T, keep func(name string) bool) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "bin"):
			return filepath.SkipDir
		case d.Type().IsRegular() && keep(name) && !strings.HasSuffix(name, ".test") &&
			!strings.HasSuffix(name, ".prof"):
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("walk the tree: %v", err)
	}
	return names
}
