package logging

import "os"

// noFollow is nothing: only administrators may make symbolic links, unless one of them has said otherwise.
const noFollow = 0

// openFile opens the one log file, making it if need be.
func openFile(name string, mode int) (*os.File, error) {
	return os.OpenFile(name, os.O_CREATE|os.O_WRONLY|mode, 0o644)
}
