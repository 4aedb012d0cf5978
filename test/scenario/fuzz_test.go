package scenario

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzParse: every error of any text names the file and a line of it, and a text without errors has
// a first state.
func FuzzParse(f *testing.F) {
	dir, err := Dir()
	if err != nil {
		f.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil || len(files) == 0 {
		f.Fatal("no scenarios", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data))
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse("s.txtar", []byte(text), "")
		if err == nil {
			if len(s.States) == 0 || s.States[0].Name != "" {
				t.Errorf("no first state: %+v", s)
			}
			return
		}
		for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
			var line int
			where, ok := strings.CutPrefix(e.Error(), "s.txtar:")
			if _, scanErr := fmt.Sscanf(where, "%d:", &line); !ok || scanErr != nil || line < 1 ||
				line > strings.Count(text, "\n")+3 {
				t.Errorf("%q names no line of the file", e)
			}
		}
	})
}
