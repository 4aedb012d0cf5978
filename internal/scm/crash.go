package scm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
)

// KeepCrashes has the runtime write panics to a file too, since a service has no stderr. It renames
// the file of an earlier crash to before.
func KeepCrashes(name, before string) (crashed bool, err error) {
	switch info, err := os.Stat(name); {
	case err == nil && info.Size() > 0:
		if err := os.Rename(name, before); err != nil {
			return true, fmt.Errorf("keep the crash report of the previous process: %w", err)
		}
		crashed = true
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return false, fmt.Errorf("look for a crash of the previous process: %w", err)
	}
	f, err := os.Create(name)
	if err != nil {
		return crashed, fmt.Errorf("create a file for crash reports: %w", err)
	}
	defer f.Close() // the runtime has its own descriptor
	if err := debug.SetCrashOutput(f, debug.CrashOptions{}); err != nil {
		return crashed, fmt.Errorf("redirect crash reports to %s: %w", name, err)
	}
	return crashed, nil
}
