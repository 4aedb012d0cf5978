//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "demo: the lab is made of Linux network namespaces")
	os.Exit(1)
}
