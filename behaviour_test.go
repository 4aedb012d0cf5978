package kubeproxy_test

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kube-proxy/test/golden"
)

const specification = "docs/behaviour.md"

// The specification and the tree agree: the page has each row that the tree cites, and each row of
// the page is cited and proven by a test or a scenario, unless its package is not built yet.
// The proofs end the row.
func TestSpecification(t *testing.T) {
	content, err := os.ReadFile(specification)
	if err != nil {
		t.Fatal(err)
	}
	page, rows := string(content), citations(t)
	if *golden.Update {
		page = withProofs(page, rows)
		if err := os.WriteFile(specification, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, fault := range faults(page, rows, built) {
		t.Error(fault)
	}
	want := strings.Split(withProofs(page, rows), "\n")
	for i, line := range strings.Split(page, "\n") {
		if line != want[i] {
			t.Errorf("%s:%d: the proofs are stale (go test . -run TestSpecification -update):\n%s\nwant\n%s",
				specification, i+1, line, want[i])
		}
	}
}

// built reports whether there is a folder with code; one of a mode must make planes.
func built(dir string) bool {
	if mode, err := os.ReadFile(filepath.Join(dir, "mode.go")); err == nil {
		return regexp.MustCompile(`(?m)^\s+New:`).Match(mode)
	}
	_, err := os.Stat(dir)
	return err == nil
}

var (
	// specRow is a line of the specification: **id** What must be so. *(source)* `proof` `proof`.
	specRow = regexp.MustCompile("^\\*\\*([^*]+)\\*\\* (.+\\.(?: \\*\\([^*]+\\)\\*)?)((?: `[^` ]+`)*)$")
	// notBuilt is in the text of a row that waits for a folder.
	notBuilt = regexp.MustCompile("Not built yet: `([a-z0-9/]+)`")
)

// cited says of one row where it is cited, the first file by name, and what proves it.
type cited struct {
	at     string
	proofs []string
}

// faults compares the specification with the citations.
func faults(page string, rows map[string]*cited, built func(dir string) bool) []string {
	var all []string
	fault := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	there := map[string]bool{}
	for i, line := range strings.Split(page, "\n") {
		if !strings.HasPrefix(line, "**") {
			continue
		}
		cells := specRow.FindStringSubmatch(line)
		if cells == nil || !rowID.MatchString(cells[1]) {
			fault("%s:%d: want **id** and a sentence, have %q", specification, i+1, line)
			continue
		}
		id, wait := cells[1], notBuilt.FindStringSubmatch(cells[2])
		if there[id] {
			fault("%s:%d: %s is there twice", specification, i+1, id)
		}
		there[id] = true
		row, ok := rows[id]
		switch {
		case !ok:
			fault("%s:%d: nothing cites %s", specification, i+1, id)
		case wait != nil && built(wait[1]):
			fault("%s:%d: %s waits for %s, which is there", specification, i+1, id, wait[1])
		case wait == nil && len(row.proofs) == 0:
			fault("%s:%d: no test and no scenario proves %s", specification, i+1, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(rows)) {
		if !there[id] && rows[id].at != "" {
			fault("%s cites %s, which %s has not", rows[id].at, id, specification)
		}
	}
	return all
}

// withProofs returns the page with new proofs.
func withProofs(page string, rows map[string]*cited) string {
	lines := strings.Split(page, "\n")
	for i, line := range lines {
		cells := specRow.FindStringSubmatch(line)
		if cells == nil || !rowID.MatchString(cells[1]) {
			continue
		}
		lines[i] = fmt.Sprintf("**%s** %s", cells[1], cells[2])
		if row := rows[cells[1]]; row != nil {
			for _, proof := range byFolder(row.proofs) {
				lines[i] += " `" + proof + "`"
			}
		}
	}
	return strings.Join(lines, "\n")
}

// byFolder joins the proofs of a folder, and scenarios, as a shell's braces do:
// config.{TestA,TestB}.
func byFolder(proofs []string) []string {
	var heads []string
	tails := map[string][]string{}
	for _, proof := range proofs {
		cut := strings.LastIndexAny(proof, "/.") + 1
		if strings.Contains(proof, "/testdata/") {
			cut = strings.LastIndex(proof, "/") + 1
		}
		head := proof[:cut] // "" for a scenario
		if tails[head] == nil {
			heads = append(heads, head)
		}
		tails[head] = append(tails[head], proof[cut:])
	}
	for i, head := range heads {
		if t := tails[head]; len(t) == 1 {
			heads[i] += t[0]
		} else {
			heads[i] += "{" + strings.Join(t, ",") + "}"
		}
	}
	return heads
}

var (
	// rowID is a row's id: SV-52, G3, or EXT. UTF-8, KUBE-6-CLUSTER-IP and CVE-2020-8554 are none.
	rowID = regexp.MustCompile(`^(?:[A-Z]{2}-[0-9]{2}|G[1-9]|EXT)$`)
	// rowWord is a word that may be one: KUBE-EXT-… and $EXT are words of their own.
	rowWord = regexp.MustCompile(`[\w$-]+`)
	// rowRange is a citation of all rows from one to another: SV-10…SV-18, HT-10 to HT-14.
	rowRange = regexp.MustCompile(`\b([A-Z]{2}-)([0-9]{2})(?:…| to )([A-Z]{2}-)([0-9]{2})\b`)
	// idInName is the row in the name of a test: TestKindBeforeAgeSV24.
	idInName = regexp.MustCompile(`([A-Z]{2})([0-9]{2})`)
	testName = regexp.MustCompile(`^(Test|Fuzz)`)
	// scenarioRows is the line of a scenario that says what it proves.
	scenarioRows = regexp.MustCompile(`(?m)^Rows: .*$`)
)

// harness has what reads scenarios and sends their packets. Its own tests cite rows as examples,
// and prove none.
var harness = []string{"test/scenario", "tools/demo", "test/planetest"}

// idsIn returns the rows that a text cites one by one, and those that it cites as part of a range,
// which need not exist.
func idsIn(text string) (single, ranged []string) {
	for _, word := range rowWord.FindAllString(text, -1) {
		if rowID.MatchString(word) {
			single = append(single, word)
		}
	}
	for _, m := range rowRange.FindAllStringSubmatch(text, -1) {
		for n := 0; n < 100 && m[1] == m[3]; n++ {
			if nn := fmt.Sprintf("%02d", n); m[2] < nn && nn < m[4] {
				ranged = append(ranged, m[1]+nn)
			}
		}
	}
	return single, ranged
}

// citations reads the tree: where each row is cited, and what proves it. That is a scenario with
// the row in its head, a test that cites it, and a file of testdata that cites it and that a test
// reads.
func citations(t *testing.T) map[string]*cited {
	rows := map[string]*cited{}
	row := func(id string) *cited {
		if rows[id] == nil {
			rows[id] = &cited{}
		}
		return rows[id]
	}
	prove := func(by string, ids []string) {
		for _, id := range ids {
			row(id).proofs = append(row(id).proofs, by)
		}
	}
	gofiles, texts := goFiles(t), textFiles(t)
	data := dataOfTests(gofiles, texts)
	for name, text := range texts {
		single, ranged := idsIn(text)
		for _, id := range single {
			if at := row(id).at; at == "" || name < at {
				row(id).at = name
			}
		}
		for _, id := range ranged {
			row(id)
		}
		if dir, base := path.Split(name); dir == "test/testdata/scenarios/" && path.Ext(base) == ".txtar" {
			ids, _ := idsIn(scenarioRows.FindString(text))
			prove(strings.TrimSuffix(base, ".txtar"), ids)
		} else if slices.ContainsFunc(data,
			func(pattern string) bool { ok, _ := path.Match(pattern, name); return ok }) {
			prove(name, append(single, ranged...))
		}
	}
	for name, ids := range idsOfTests(gofiles, texts) {
		prove(name, ids)
	}
	for _, r := range rows {
		slices.SortFunc(r.proofs, func(a, b string) int { // scenarios first
			return cmp.Or(strings.Count(a, ".")-strings.Count(b, "."), strings.Compare(a, b))
		})
		r.proofs = slices.Compact(r.proofs)
	}
	return rows
}

// textFiles returns the content of all files that may cite a row, by name: all but binaries, the
// specification, and this test.
func textFiles(t *testing.T) map[string]string {
	texts := map[string]string{}
	for _, name := range files(t, func(name string) bool {
		return name != specification && name != "behaviour_test.go"
	}) {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(content[:min(len(content), 8000)], 0) < 0 {
			texts[filepath.ToSlash(name)] = string(content)
		}
	}
	return texts
}

// dataOfTests returns the patterns of the files of testdata that tests name.
func dataOfTests(gofiles []goFile, texts map[string]string) []string {
	var patterns []string
	for _, f := range gofiles {
		if f.test {
			for _, m := range regexp.MustCompile(`testdata/[\w*./-]*\w`).FindAllString(texts[f.path], -1) {
				patterns = append(patterns, path.Join(f.dir, m))
			}
		}
	}
	slices.Sort(patterns)
	return slices.Compact(patterns)
}

// idsOfTests returns the rows that each test cites, by folder and name: in its name, in the comment
// above it, in its code, and so in the tables of the folder's tests that its code names.
func idsOfTests(gofiles []goFile, texts map[string]string) map[string][]string {
	tables, tests, code := map[string][]string{}, map[string][]string{}, map[string]ast.Node{}
	for _, f := range gofiles {
		if !f.test || texts[f.path] == "" || slices.Contains(harness, f.dir) {
			continue
		}
		cites := func(d ast.Decl, doc *ast.CommentGroup) []string {
			from := d.Pos()
			if doc != nil {
				from = doc.Pos()
			}
			single, ranged := idsIn(texts[f.path][from-f.ast.FileStart : d.End()-f.ast.FileStart])
			return append(single, ranged...)
		}
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if testName.MatchString(d.Name.Name) {
					name := f.dir + "." + d.Name.Name
					code[name], tests[name] = d, cites(d, d.Doc)
					for _, m := range idInName.FindAllStringSubmatch(d.Name.Name, -1) {
						tests[name] = append(tests[name], m[1]+"-"+m[2])
					}
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if v, ok := spec.(*ast.ValueSpec); ok && d.Tok == token.VAR {
						for _, name := range v.Names {
							tables[f.dir+"."+name.Name] = cites(d, d.Doc)
						}
					}
				}
			}
		}
	}
	for name, body := range code {
		dir := strings.TrimSuffix(name, path.Ext(name))
		ast.Inspect(body, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				tests[name] = append(tests[name], tables[dir+"."+id.Name]...)
			}
			return true
		})
	}
	return tests
}

func TestRowIDs(t *testing.T) {
	for text, want := range map[string]string{
		"fall back (SV-36), G4":                         "SV-36 G4",
		"| SV-65, EXT |":                                "SV-65 EXT",
		"HT-10 to HT-13; SV-50…SV-52":                   "HT-10 HT-13 SV-50 SV-52 HT-11 HT-12 SV-51",
		"SV-50, SV-51":                                  "SV-50 SV-51",
		"SV-10 to HT-12":                                "SV-10 HT-12",
		"UTF-8, IPv4, SHA-256, CVE-2020-8554, 8 G, G12": "",
		":KUBE-EXT-67NZ $EXT KUBE-6-NODE-PORT IP-2":     "",
		"SV-520 SV-5 sv-52 XSV-52 SV-52-x SV_52":        "",
	} {
		single, ranged := idsIn(text)
		if got := strings.Join(append(single, ranged...), " "); got != want {
			t.Errorf("%q cites %q, want %q", text, got, want)
		}
	}
}

func TestFaultsOfTheBook(t *testing.T) {
	proven := map[string]*cited{"SV-10": {at: "a.go", proofs: []string{"x"}}}
	unproven := map[string]*cited{"SV-10": {at: "a.go"}}
	for _, c := range []struct {
		name, page string
		rows       map[string]*cited
		want       string
	}{
		{"all is well", "**SV-10** A. *(b)* `x`\n", proven, ""},
		{"cited, not in the page", "", proven, "a.go cites SV-10, which docs/behaviour.md has not"},
		{"part of a range, not in the page", "", map[string]*cited{"SV-11": {}}, ""},
		{"in the page, not cited", "**SV-10** A.\n", nil, "docs/behaviour.md:1: nothing cites SV-10"},
		{"not proven", "**SV-10** A. *(b)*\n", unproven, "docs/behaviour.md:1: no test and no scenario proves SV-10"},
		{"waits", "**SV-10** A. Not built yet: `plane/x`.\n", unproven, ""},
		{"waits no more", "**SV-10** A. Not built yet: `plane/y`. `x`\n", proven,
			"docs/behaviour.md:1: SV-10 waits for plane/y, which is there"},
		{"twice", "**SV-10** A. `x`\n\n**SV-10** A. `x`\n", proven, "docs/behaviour.md:3: SV-10 is there twice"},
		{"no sentence", "**SV-10** `x`\n", nil,
			"docs/behaviour.md:1: want **id** and a sentence, have \"**SV-10** `x`\""},
		{"no id", "**SV-1** A.\n", nil, "docs/behaviour.md:1: want **id** and a sentence, have \"**SV-1** A.\""},
	} {
		if got := strings.Join(faults(c.page, c.rows, func(dir string) bool { return dir == "plane/y" }),
			"\n"); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, got, c.want)
		}
	}
	got := withProofs("**SV-10** A `b`. *(c)* `old` `a.b`\n\n**SV-11** A `b.c`. `d`.\ntext", proven)
	if want := "**SV-10** A `b`. *(c)* `x`\n\n**SV-11** A `b.c`. `d`.\ntext"; got != want {
		t.Errorf("new proofs:\n%s\nwant\n%s", got, want)
	}
	proofs := []string{"restart", "restarts", "a.TestA", "a/testdata/x.txt", "a/testdata/y.tsv", "a.TestB", "..TestC"}
	want := "{restart,restarts} a.{TestA,TestB} a/testdata/{x.txt,y.tsv} ..TestC"
	if got := strings.Join(byFolder(proofs), " "); got != want {
		t.Errorf("byFolder(%v):\n%s\nwant\n%s", proofs, got, want)
	}
}
