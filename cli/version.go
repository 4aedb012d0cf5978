package cli

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"kube-proxy/config"
)

// printVersion prints "Kubernetes v…", or with raw all details of the build.
func printVersion(out io.Writer, raw bool) error {
	const version = config.Compatible
	if !raw {
		_, err := fmt.Fprintln(out, "Kubernetes", version)
		return err
	}
	info := map[string]string{"kubernetes": version, "go": runtime.Version(), "platform": runtime.GOOS + "/" +
		runtime.GOARCH}
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			if strings.HasPrefix(s.Key, "vcs.") {
				info[s.Key] = s.Value
			}
		}
	}
	return printJSON(out, info)
}
