package kernel

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
)

func TestParseVersion(t *testing.T) {
	for release, want := range map[string]Version{
		"6.12.48+deb13-amd64":    {6, 12, 48},
		"5.10.0-35-cloud-amd64":  {5, 10, 0},
		"6.18-rc3":               {6, 18, 0},
		"6.6":                    {6, 6, 0},
		"4.18.0-553.el8.x86_64":  {4, 18, 0},
		"5.15.167.4-microsoft":   {5, 15, 167},
		"":                       {},
		"six":                    {},
		"6":                      {},
		"6.":                     {},
		"6..1":                   {},
		"99999999999999999999.1": {},
	} {
		got, err := ParseVersion(release)
		if got != want || (err != nil) != (want == Version{}) {
			t.Errorf("ParseVersion(%q) = %v, %v; want %v", release, got, err, want)
		}
	}
}

func TestAtLeast(t *testing.T) {
	v := Version{6, 1, 3}
	for _, c := range []struct {
		major, minor int
		want         bool
	}{{6, 1, true}, {6, 0, true}, {5, 19, true}, {6, 2, false}, {7, 0, false}} {
		if got := v.AtLeast(c.major, c.minor); got != c.want {
			t.Errorf("%v at least %d.%d: %v", v, c.major, c.minor, got)
		}
	}
}

func TestRunning(t *testing.T) {
	v, err := Tree{}.Running()
	if err != nil || !v.AtLeast(4, 0) {
		t.Fatalf("Running() = %v, %v", v, err)
	}
}

// G7: the kernel's answers are distinguished, and reported with a remedy.
func TestNFTablesAnswer(t *testing.T) {
	for _, c := range []struct {
		errno unix.Errno
		is    error
		says  string
	}{
		{unix.EPERM, fs.ErrPermission, "needs root"},
		{unix.EINVAL, ErrUnsupported, "nf_tables is missing"},
		{unix.EOPNOTSUPP, ErrUnsupported, "nf_tables is missing"},
		{unix.ENOMEM, unix.ENOMEM, "probe nf_tables"},
	} {
		if err := nftablesAnswer(c.errno); !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("answer %v: %v; want one that is %v and says %q", c.errno, err, c.is, c.says)
		}
	}
}

func TestNFTablesHere(t *testing.T) {
	inNamespace(t, func() {
		if err := NFTables(); err != nil {
			t.Errorf("as root: %v", err)
		}
	})
}

// Without CAP_NET_ADMIN the probe reports that, and not that the kernel lacks nf_tables.
func TestNFTablesWithoutCapability(t *testing.T) {
	inNamespace(t, func() {
		dropAll := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		if err := unix.Capset(dropAll, &make([]unix.CapUserData, 2)[0]); err != nil {
			t.Errorf("drop all capabilities: %v", err)
			return
		}
		err := NFTables()
		if !errors.Is(err, fs.ErrPermission) || errors.Is(err, ErrUnsupported) ||
			!strings.Contains(err.Error(), "NET_ADMIN") {
			t.Errorf("without capabilities: %v", err)
		}
	})
}

func TestSysctlFile(t *testing.T) {
	for name, want := range map[string]string{
		"net.ipv4.ip_forward":               "/proc/sys/net/ipv4/ip_forward",
		"net/ipv4/conf/eth0.100/forwarding": "/proc/sys/net/ipv4/conf/eth0.100/forwarding",
		"net.ipv4.conf.eth0/100.forwarding": "/proc/sys/net/ipv4/conf/eth0.100/forwarding",
		"":                                  "",
		"net/../../../etc/passwd":           "",
		"/etc/passwd":                       "",
		"net.ipv4.ip forward":               "",
	} {
		got, err := Tree{}.sysctlFile(name)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("sysctlFile(%q) = %q, %v; want %q", name, got, err, want)
		}
	}
}

// A sysctl is written only if it differs, and in the namespace of the calling thread alone.
func TestSetSysctl(t *testing.T) {
	const name = "net.ipv4.ip_forward"
	outside, err := Sysctl(name)
	if err != nil {
		t.Fatal(err)
	}
	inNamespace(t, func() {
		for _, value := range []string{"0", " 0\n", "1", "1", "0"} {
			before, _ := Sysctl(name)
			wrote, err := SetSysctl(name, value)
			after, _ := Sysctl(name)
			want := strings.TrimSpace(value)
			if err != nil || after != want || wrote != (before != want) {
				t.Errorf("set %q over %q: wrote %v, now %q, %v", value, before, wrote, after, err)
			}
		}
		if _, err := SetSysctl("net.ipv4.no_such_thing", "1"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a sysctl that is not there: %v", err)
		}
		if _, err := SetSysctl(name, "nonsense"); !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), name) {
			t.Errorf("a value that the kernel refuses: %v", err)
		}
		// Tabs in the kernel's value equal blanks in ours.
		if wrote, err := SetSysctl("net.ipv4.ping_group_range", "1 0"); wrote || err != nil {
			t.Errorf("the value that it has, with a blank: wrote %v, %v", wrote, err)
		}
	})
	if now, _ := Sysctl(name); now != outside {
		t.Errorf("%s of the outer namespace went from %s to %s", name, outside, now)
	}
}

// inNamespace runs f in a new network namespace.
func inNamespace(t testing.TB, f func()) {
	t.Helper()
	if err := netlab.Isolated(0, func() error { f(); return nil }); err != nil {
		t.Error(err)
	}
}
