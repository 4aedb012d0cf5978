package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// write makes a module with one package, and works there.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	files["go.mod"] = "module example\n\ngo 1.26\n"
	for name, text := range files {
		path := filepath.Join(dir, name)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	return dir
}

const code = `package example

import (
	"fmt"
	"time"
)

var limit = 7 + 1

type count struct{ n int }

func (c *count) add(n int) bool {
	if n < 0 || n > limit {
		fmt.Println("no", n+1)
		return false
	}
	c.n += n
	if n > 3 || n == 1 {
		fmt.Println("many")
	}
	_ = time.Since(time.Now()) > time.Hour
	x := n
	_ = x
	return true
}
`

// Each kind of change is found, and none in declarations, in what is printed and when, or at the
// limit of a measured time.
func TestMutantsOf(t *testing.T) {
	dir := write(t, map[string]string{"a.go": code})
	all, err := mutantsOf(filepath.Join(dir, "a.go"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range all {
		got = append(got, m.text(dir))
	}
	want := []string{
		`a.go:17: deleted: c.n += n`,
		`a.go:13: || becomes &&: if n < 0 || n > limit {`,
		`a.go:13: < becomes <=: if n < 0 || n > limit {`,
		`a.go:13: > becomes >=: if n < 0 || n > limit {`,
		`a.go:15: false becomes true: return false`,
		`a.go:24: true becomes false: return true`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if text := string(all[1].source); !strings.Contains(text, "n < 0 && n > limit") || len(text) != len(code) {
		t.Errorf("the changed file is\n%s", text)
	}
}

// Good tests notice all changes, bad ones do not, and those of equivalent.txt do not count.
func TestRun(t *testing.T) {
	test := `package example

import "testing"

func TestAdd(t *testing.T) {
	var c count
	for n, want := range map[int]bool{-1: false, 0: true, 8: true, 9: false} {
		if got := c.add(n); got != want {
			t.Errorf("%d: %v", n, got)
		}
	}
	SUM
}
`
	sum := "if c.n != 8 { t.Error(c.n) }"
	for _, c := range []struct {
		name, sum, equivalent string
		survivor              string
		fails                 bool
	}{
		{"good tests", sum, "", "", false},
		{"bad tests", "", "", "a.go:17: deleted: c.n += n", true},
		{"bad tests of an equivalent change", "", "a.go: deleted: c.n += n", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			write(t, map[string]string{"a.go": code, "a_test.go": strings.Replace(test, "SUM", c.sum, 1)})
			equivalent = c.equivalent
			var out strings.Builder
			err := run(t.Context(), []string{"-for", "5m", "-floor", "100"}, &out)
			if (err != nil) != c.fails || strings.Contains(out.String(), "survivor: ") != (c.survivor != "") ||
				!strings.Contains(out.String(), c.survivor) {
				t.Errorf("%v\n%s", err, out.String())
			}
		})
	}
}

// Tests of a package that users.txt names count too.
func TestUsers(t *testing.T) {
	for list, fails := range map[string]bool{"": true, "other: user\n": true, "used: user\n": false} {
		write(t, map[string]string{
			"used/used.go":      "package used\n\nfunc Add(a, b int) int { return a + b }\n",
			"used/used_test.go": "package used\n\nimport \"testing\"\n\nfunc TestNothing(*testing.T) {}\n",
			"user/user.go": "package user\n\nimport \"example/used\"\n\n" +
				"func Two() int { return used.Add(1, 1) }\n",
			"user/user_test.go": "package user\n\nimport \"testing\"\n\n" +
				"func TestTwo(t *testing.T) {\n\tif Two() != 2 {\n\t\tt.Fatal(Two())\n\t}\n}\n",
		})
		equivalent, users = "", list
		var out strings.Builder
		if err := run(t.Context(), []string{"-floor", "100", "./used"}, &out); (err != nil) != fails {
			t.Errorf("with %q: %v\n%s", list, err, out.String())
		}
	}
	users = ""
}

// A package whose tests fail without a change is an error, and bad flags are.
func TestRefuses(t *testing.T) {
	write(t, map[string]string{"a.go": code, "a_test.go": "package example\n\nimport \"testing\"\n\n" +
		"func TestAdd(t *testing.T) { t.Fatal(1) }\n"})
	for _, args := range [][]string{nil, {"-for", "0s"}, {"-floor", "101"}, {"./nothing"}} {
		if err := run(t.Context(), args, new(strings.Builder)); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}
