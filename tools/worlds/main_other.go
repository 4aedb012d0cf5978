//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "worlds: the worlds are made of Linux network namespaces")
	os.Exit(1)
}
