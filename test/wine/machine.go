package wine

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

// TB is the part of testing.TB that a machine uses.
type TB interface {
	Helper()
	Cleanup(func())
	TempDir() string
	Fatal(args ...any)
}

// Errors returns what a program itself wrote to standard error. Wine may report there that its own
// connection is lost while a program ends.
func Errors(written string) string {
	return regexp.MustCompile(`(?m)^wine client error:.*\n?`).ReplaceAllString(written, "")
}

// Paths of Debian's packages wine and wine64.
const (
	program   = "/usr/lib/wine/wine64"
	server    = "/usr/lib/wine/wineserver64"
	libraries = "/usr/lib/x86_64-linux-gnu/wine/x86_64-windows"
)

// Machine is a Windows machine that ends with its test.
type Machine struct{ prefix string }

// New makes a machine. It fails without Wine: a skipped test of Windows would prove nothing.
func New(t TB) *Machine {
	t.Helper()
	m := &Machine{prefix: t.TempDir()}
	if err := m.fill(); err != nil {
		t.Fatal(fmt.Errorf("make a machine of Wine (make deps installs it): %w", err))
	}
	t.Cleanup(func() {
		_ = m.command(server, "--kill").Run() // it may have ended
		_ = m.command(server, "--wait").Run()
	})
	return m
}

// fill makes the machine's folders.
func (m *Machine) fill() error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("this is %s, and not amd64", runtime.GOARCH)
	}
	if _, err := exec.LookPath("wine-stable"); err != nil {
		return err
	}
	system := filepath.Join(m.prefix, "drive_c", "windows", "system32")
	for _, dir := range []string{filepath.Join(m.prefix, "dosdevices"), filepath.Join(system, "drivers")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	all, err := os.ReadDir(libraries)
	if err != nil {
		return err
	}
	links := map[string]string{filepath.Join(m.prefix, "dosdevices", "c:"): "../drive_c",
		filepath.Join(m.prefix, "dosdevices", "z:"): "/"}
	for _, e := range all {
		if strings.HasSuffix(e.Name(), ".sys") {
			links[filepath.Join(system, "drivers", e.Name())] = filepath.Join(libraries, e.Name())
		}
		links[filepath.Join(system, e.Name())] = filepath.Join(libraries, e.Name())
	}
	for name, to := range links {
		if err := os.Symlink(to, name); err != nil {
			return err
		}
	}
	// Wine 8 lacks a library that every program of Go needs since 1.22, and another has its only
	// function under another name.
	const random = "bcryptprimitives.dll"
	if links[filepath.Join(system, random)] == "" {
		if err := os.WriteFile(filepath.Join(system, random),
			library(random, "ProcessPrng", "advapi32.SystemFunction036"), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(m.prefix, ".update-timestamp"), []byte("disable\n"), 0o644)
}

// Boot starts the machine in a network namespace. It runs until the test ends; without Boot it
// would end with its last program, services and drivers included. A driver reports its interfaces
// and addresses. start starts a command in the namespace.
func (m *Machine) Boot(t TB, start func(*exec.Cmd) error) {
	t.Helper()
	if err := m.boot(t, start); err != nil {
		t.Fatal(fmt.Errorf("start a machine of Wine: %w", err))
	}
}

func (m *Machine) boot(t TB, start func(*exec.Cmd) error) error {
	user := m.Command("cmd.exe") // waits for input
	typed, err := user.StdinPipe()
	if err != nil {
		return err
	}
	said, err := user.StdoutPipe()
	if err != nil {
		return err
	}
	if err := start(user); err != nil {
		return err
	}
	t.Cleanup(func() {
		_ = typed.Close()
		_ = user.Wait()
	})
	if _, err := said.Read(make([]byte, 1)); err != nil { // once it prints, the service control manager is running
		return fmt.Errorf("await the greeting of cmd.exe: %w", err)
	}
	for _, args := range [][]string{
		{"create", "nsiproxy", "type=", "kernel", "start=", "system", "binPath=",
			`C:\windows\system32\drivers\nsiproxy.sys`}, {"start", "nsiproxy"},
	} {
		c := m.Command("sc.exe", args...)
		err := start(c)
		if err == nil {
			err = c.Wait()
		}
		if err != nil {
			return fmt.Errorf("sc.exe %s: %w", strings.Join(args, " "), err)
		}
	}
	return nil
}

// Command returns a command for a program, which is a file of this system or, by its name alone,
// one of Windows' own.
func (m *Machine) Command(name string, args ...string) *exec.Cmd {
	return m.command(program, append([]string{name}, args...)...)
}

func (m *Machine) command(name string, args ...string) *exec.Cmd {
	c := exec.Command(name, args...)
	c.Env = append(os.Environ(), "WINEPREFIX="+m.prefix, "WINEDEBUG=-all", "WINESERVER="+server)
	return c
}

// Path returns the name of a file of this system for programs of Windows.
func Path(file string) string { return "Z:" + strings.ReplaceAll(file, "/", `\`) }
