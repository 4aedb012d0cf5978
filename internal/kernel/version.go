package kernel

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Version is a kernel release. Versions are comparable.
type Version struct{ Major, Minor, Patch int }

// String returns "6.12.48".
func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }

// AtLeast reports whether v is major.minor or later.
func (v Version) AtLeast(major, minor int) bool {
	return cmp.Or(cmp.Compare(v.Major, major), cmp.Compare(v.Minor, minor)) >= 0
}

// ParseVersion reads the output of uname -r, such as "6.12.48+deb13-amd64", "5.10.0-35-cloud" or
// "6.18-rc3", and ignores the rest after the numbers.
func ParseVersion(release string) (Version, error) {
	end := strings.IndexFunc(release, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	if end < 0 {
		end = len(release)
	}
	var nums [3]int
	parts := strings.SplitN(strings.TrimRight(release[:end], "."), ".", 4)
	if len(parts) < 2 {
		return Version{}, fmt.Errorf("kernel release %q: want MAJOR.MINOR", release)
	}
	for i, part := range parts[:min(len(parts), 3)] {
		n, err := strconv.Atoi(part)
		if err != nil {
			return Version{}, fmt.Errorf("kernel release %q: %w", release, err)
		}
		nums[i] = n
	}
	return Version{nums[0], nums[1], nums[2]}, nil
}
