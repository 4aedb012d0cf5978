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

// imports says which of our packages may import which, in files that are not tests.
//
// DO NOT CHANGE THIS DATA TO FIX BUILDS. It is the design: a build that breaks here has put
// something into the wrong house. A new line needs a reason that would convince a reader of
// docs/architecture.md.
//
// "a, b < c, d" means that c and d may import a and b. Lines add up; nothing is transitive; NONE is
// no package of ours, ALL is every one. A package that no line has on its right side may not exist.
const imports = `
	NONE < plane, event, internal/addrs, internal/ordered, test/golden;
	# A node holds a million endpoints.
	internal/addrs < cluster, lb;
	# Claims on a key, and shares of a namespace, are heaps from which any element can leave.
	internal/ordered < lb, engine;
	test/golden < test/planetest;
	# It obeys the configuration as it is.
	config < logging;
	NONE < cli/report, config/option, plane/selfwrites, plane/internal/diff, internal/rollback;
	internal/netlink, internal/nft/wire, internal/rollback, plane/internal/diff < plane/internal/ranges;
	plane/internal/ranges < plane/nftables, plane/userspace/redirect;
	lb < plane/internal/slots;
	NONE < internal/thread, internal/netlab, internal/kernel, test/exectest, test/logtest, test/clocktest, test/cputest, test/seedtest, internal/ratelimit, internal/bisect, internal/pause, internal/plural, internal/nearest, internal/listen, test/listentest, internal/netlink, internal/scm, test/wine;

	cluster, lb < policy, debug/changes;
	cluster, lb, policy < config/nodecheck;
	lb < trace;

	cluster < source/convert, source/snapshot;
	cluster, source/convert < source/kube, source/manifests;
	event, internal/ratelimit < source/kube;

	# What a Reset left for later are keys of rows.
	lb < plane;

	cluster, policy, lb, plane, debug/changes, internal/ratelimit, internal/bisect < engine;
	internal/bisect < plane/nftables, plane/ipvs, internal/xtables;

	internal/pause < conntrack, debug/inspect, source/kube, source/snapshot;
	# Sentences count things.
	internal/plural < debug/changes, debug/inspect, policy, trace;
	# What a misspelled name may have meant is found in one way.
	internal/nearest < config, debug/inspect, source/manifests, cli/migrate;
	# Threads that change their namespaces end in one way.
	internal/thread < internal/netlab, cli/preflight, plane/ebpf;
	internal/netlink < internal/kernel, conntrack, internal/sockets, plane/nftables, test/nlconntest, internal/nft/wire, internal/nft/rule, internal/netlink/ipset, internal/netlink/ipvs, internal/netlink/route, internal/netlink/conntrack;
	internal/netlink/ipvs, internal/netlink/ipset, internal/netlink/route, internal/netlink < plane/ipvs;
	# Answers of nf_tables are netlink messages.
	internal/netlink < internal/xtables;
	# The programs of iptables are run, and their language is known, in one place: chains of three modes are kept by them.
	lb, plane, plane/selfwrites, mode, internal/kernel, internal/rollback < internal/xtables;
	internal/xtables < plane/iptables, plane/ipvs, plane/userspace/redirect;
	# Who follows a packet reads rules, whatever their language, and knows no writer. A rule may ask for the interface that a packet leaves
	# through, and whether an address is the node's own.
	trace < internal/follow;
	lb, trace, internal/follow, internal/xtables, internal/netlink/route, internal/netlink < internal/xtwalk;
	internal/xtwalk < plane/iptables, plane/ipvs, plane/userspace/redirect;
	internal/follow < internal/nft/walk, plane/nftables, plane/userspace/redirect;
	# Planes report how the kernel treats a packet, in the vocabulary of the table's answer.
	trace < plane/nftables, plane/ebpf, plane/iptables, plane/ipvs, plane/userspace, plane/userspace/redirect, plane/hns, test/fake, test/planetest;
	# IPVS in memory implements the requests of IPVS, and does not depend on its callers.
	internal/netlink/ipvs, internal/netlink < test/ipvsfake;
	internal/netlink/route < plane/userspace/redirect;
	# The kernel says which addresses are the node's: endpoints there may be refused (TN-52).
	internal/netlink, internal/netlink/route < plane/userspace;
	lb, plane, plane/selfwrites < internal/nft/wire;
	lb, internal/nft/wire < internal/nft/rule;
	internal/nft/rule < internal/nft/walk, plane/nftables, plane/userspace/redirect;
	internal/nft/wire, internal/rollback, mode < plane/userspace/redirect;
	# Rules beside some that iptables cannot print are deleted by their handles.
	internal/nft/wire < plane/nftables, internal/xtables;
	# All planes with a table trace packets through the kernel's rules alike.
	internal/netlink, internal/nft/wire, trace < internal/nft/walk;
	internal/nft/walk < plane/nftables, plane/userspace/redirect;
	# The packet filter of the node is that of all programs, in the order of the kernel.
	lb, trace, internal/follow, internal/netlink, internal/netlink/route, internal/netlink/ipset, internal/nft/wire, internal/nft/walk, internal/xtables, internal/xtwalk < internal/hooks;

	# A mode is one value, which a plane's package gives and plane/all lists. What needs no plane knows the value alone.
	# What a flag or a field is, config and the modes say in the same words.
	config/option < mode, config, plane/nftables, plane/iptables, plane/ipvs, plane/userspace, plane/hns;
	event, lb, plane, plane/selfwrites, trace < mode;
	mode < config, status, internal/system, plane/cleanup;
	lb, plane, plane/selfwrites, plane/internal/diff, internal/rollback, plane/internal/slots, internal/kernel, event, mode
	< plane/nftables, plane/iptables, plane/ipvs, plane/userspace, plane/hns;
	# What moves bytes knows no Services, what leads packets to it knows no bytes, and who is next knows neither.
	lb, internal/ratelimit < plane/internal/relay;
	lb, plane, plane/selfwrites, plane/internal/diff, internal/kernel, internal/netlink < plane/userspace/redirect;
	lb, plane/internal/relay < plane/internal/balance;
	plane/internal/relay, plane/internal/balance, plane/userspace/redirect < plane/userspace;
	# What moves bytes serves the mode nftables on localhost as well; it follows rows and says what becomes of a packet there. Relay and
	# balance know nothing of mode userspace.
	lb, trace, internal/ratelimit, plane/internal/relay, plane/internal/balance < plane/localhost;
	plane/localhost, plane/internal/relay < plane/nftables;
	# The programs are objects and types of C. Their plane follows the node's addresses by netlink.
	NONE < plane/ebpf/bpf;
	lb, plane, mode, config/option, internal/netlink, internal/netlink/route, internal/sockets, internal/kernel, internal/ratelimit, plane/internal/slots, plane/ebpf/bpf < plane/ebpf;
	lb, plane < test/fake;
	# Tests say tables as text.
	lb < test/tables;
	# HNS in memory implements the requests of HNS, and does not depend on its callers.
	plane/hns < test/hnsfake;
	mode, plane/nftables, plane/iptables, plane/ipvs, plane/userspace, plane/hns, plane/ebpf < plane/all;

	lb < conntrack, health, internal/sockets, debug/flows;
	internal/netlink/conntrack, internal/netlink, internal/netlink/route < conntrack, debug/flows;
	# Traffic by Service is what planes count by row, and the table's rows.
	lb, mode < debug/traffic;
	internal/listen < health, status, cli;
	internal/ratelimit < health, conntrack;
	internal/kernel < internal/system;
	lb, internal/kernel < plane/cleanup;
	# It reads bytes, and knows of no node.
	config, mode < cli/migrate;
	# It asks what others would do, and tries modes by their values.
	lb, mode, internal/system, internal/kernel, internal/xtables, internal/netlink, internal/netlink/route < cli/preflight;
	# It asks HNS, has the program run in a lab, and asks that by the admin socket.
	lb, plane/hns, cli/preflight, internal/netlab, debug/inspect, debug/api < cli/selftest;
	engine, trace < status;
	# It follows packets through the whole node, and knows no plane.
	lb, trace, internal/hooks, internal/netlink, internal/netlink/route, internal/netlink/conntrack, internal/nft/wire, internal/nft/rule, internal/kernel, plane/selfwrites < debug/node;
	debug/node < debug/inspect, cli;
	# What people ask is put together of what all others know; who carries questions and answers knows no more than that.
	cluster, lb, policy, trace, mode, engine, debug/changes, debug/flows < debug/inspect;
	debug/inspect < debug/api;
	# The page asks the admin socket as commands do, in a process of its own: nothing that the daemon serves by HTTP knows it.
	debug/api, debug/inspect, trace < cli/ui;

	# What this node does not reach is decided without I/O; control asks the network, and planes report what clients meet.
	cluster, lb < failover;
	failover < failover/probe;
	cluster, lb, failover < failover/control;
	# Answers name unreachable endpoints, and probe them on request.
	failover, failover/probe < debug/inspect;
	failover < mode, conntrack, plane/nftables, plane/iptables, plane/ipvs, plane/ebpf, plane/userspace;
	# Conntrack is the same whatever translates, so planes watch unanswered connections in one way, by a table beside their rules.
	internal/netlink < internal/netlink/nflog;
	lb, failover, conntrack, internal/netlink, internal/netlink/conntrack, internal/netlink/nflog, internal/nft/rule, internal/nft/wire, internal/ratelimit, plane/selfwrites < plane/internal/unanswered;
	plane/internal/unanswered < plane/nftables, plane/iptables, plane/ipvs, plane/cleanup;

	# The oracle says slowly what policy and lb say quickly; tests alone ask it.
	cluster, policy, lb < test/oracle;
	cluster < test/adversary;

	# A scenario holds the YAML that a user would apply, so reading one goes the way that YAML goes.
	cluster, policy, lb, source/convert, source/manifests < test/scenario;
	# What it proves is the interface that the engine calls, with the flows that the process has the kernel forget beside it.
	cluster, policy, lb, plane, engine, conntrack, source/convert, source/manifests, internal/netlab, test/scenario, test/seedtest, test/adversary, mode, failover, failover/control < test/planetest;

	# What the process does with its configuration, commands say that it would do.
	config, engine, internal/system, lb, mode, policy, source/kube < internal/wiring;
	# The plugin of kubectl reaches proxies as its user; nothing that serves packets knows it.
	source/kube < cli/kubectl;
	cli/kubectl < cli;
	# The commands for people ask a proxy, or do offline what one would do; they know no plane but the one that selftest asks.
	cli/migrate, cli/preflight, cli/report, cli/selftest, cli/ui, config, debug/api, debug/inspect, source/kube, source/manifests, source/snapshot < cli;
	cluster, engine, lb, mode, plane/hns, policy, trace < cli;
	internal/kernel, internal/nearest, internal/pause, internal/plural, internal/system, internal/wiring < cli;

	# The tools are a module of their own, so that what only they need does not come into the product.
	ALL < cmd/kube-proxy, tools/demo, tools/bench;
	# Systems without a proxy have the plugin alone.
	cli < cmd/kubectl-svcproxy;
	config < tools/krew;
	NONE < tools/release;
	# What makes the image builds the program, and knows nothing of it.
	NONE < tools/image;
	# What changes the code at random places tests any of it.
	NONE < tools/mutants;
	# What makes the pages a site reads pages.
	NONE < tools/site;
	NONE < .;
`

// modules says who may import packages from outside the standard library and this module: "m < a"
// means that a, tests included, may import packages whose path starts with m. A module that is not
// on a left side is free to all but the pure packages; of two that match, the longer one counts.
// TESTS are the tests of all packages.
const modules = `
	# Only these know the types of Kubernetes; tests of test/adversary write objects as a tenant does.
	k8s.io, sigs.k8s.io < config, config/option, source/kube, source/manifests, source/convert, cli/kubectl, test/adversary;
	sigs.k8s.io/yaml < cli, cli/migrate, config, source/manifests, cmd/kube-proxy, tools/krew;
	k8s.io/klog < logging, config, source/kube, cli/kubectl;
	k8s.io/component-base < config, source/kube, source/convert, status;
	github.com/spf13 < config, cli, cli/kubectl, cmd/kube-proxy;
	# The product has one netlink client, internal/netlink; labs are built with this one, and tests look at the kernel by it.
	github.com/vishvananda < internal/netlab, test/planetest, plane/userspace, TESTS;
	# Tests attach programs of others by it.
	github.com/cilium/ebpf < plane/ebpf, plane/ebpf/bpf, TESTS;
	github.com/google/nftables < plane/nftables, internal/nft/wire, internal/nft/rule, internal/nft/walk;
`

// pure packages import the standard library and each other alone, so that others may use them
// anywhere.
var pure = []string{"cluster", "failover", "lb", "plane", "policy", "trace"}

// badNames are package names that say nothing about the content.
var badNames = []string{"util", "utils", "common", "helper", "helpers", "types", "manager", "managers", "misc"}

const module = "kube-proxy"

// goFile is one parsed file; dir is its folder below the root, with slashes.
type goFile struct {
	dir, path string
	test      bool
	ast       *ast.File
}

// nested reports whether f belongs to another module (test/e2e), which has its own rules for
// imports.
func (f goFile) nested() bool {
	return slices.Contains([]string{"test/e2e", "test/page", "test/monitoring"}, f.dir) ||
		strings.HasPrefix(f.dir, "test/e2e/")
}

func TestImports(t *testing.T) {
	may := parsePolicy(t, imports)
	for _, f := range goFiles(t) {
		if f.nested() {
			continue
		}
		allowed, known := may[f.dir]
		if !known {
			t.Errorf("%s: package %s has no place in the import policy", f.path, f.dir)
			continue
		}
		for _, imp := range importsOf(f) {
			ours, ok := strings.CutPrefix(imp, module+"/")
			switch {
			case ok && f.test: // tests bring together what the program keeps apart
			case ok && !slices.Contains(allowed, ours) && !slices.Contains(allowed, "ALL"):
				t.Errorf("%s: package %s may not import %s", f.path, f.dir, ours)
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

func TestModules(t *testing.T) {
	may := parsePolicy(t, modules)
	for _, f := range goFiles(t) {
		if f.nested() {
			continue
		}
		for _, imp := range importsOf(f) {
			first, _, _ := strings.Cut(imp, "/")
			if !strings.Contains(first, ".") {
				continue
			}
			if slices.Contains(pure, f.dir) {
				t.Errorf("%s imports %s: package %s lives on the standard library alone", f.path, imp, f.dir)
			}
			var closest string
			for prefix := range leftSides(modules) {
				if (imp == prefix || strings.HasPrefix(imp, prefix+"/")) && len(prefix) > len(closest) {
					closest = prefix
				}
			}
			if closest != "" && !slices.Contains(may[f.dir], closest) &&
				!(f.test && slices.Contains(may["TESTS"], closest)) {
				t.Errorf("%s: package %s may not import %s", f.path, f.dir, imp)
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
			if seen[f.path] = true; wallClocks[f.path] == "" {
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
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("parse: %v", err)
			continue
		}
		all = append(all, goFile{filepath.ToSlash(filepath.Dir(name)), name, strings.HasSuffix(name, "_test.go"), file})
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
