//go:build !linux

package config

import "os"

// openForWriting reports false: on Windows a file that is open for writing cannot be read, unless
// its writer shares it.
func openForWriting(*os.File) bool { return false }
