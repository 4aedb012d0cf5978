package main

import (
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"debug/pe"
	"math"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// maxSize is how large the image for all modes may be, compressed, for one architecture.
const maxSize = 25 << 20

// The archive as a runtime sees it: both tags for both architectures, started as upstream's image
// is, and not large.
func TestImage(t *testing.T) {
	r := openImage(t, builtImage(t))
	if err := validate.Index(r.index); err != nil {
		t.Fatal(err)
	}
	reported := reportedSizes(t)
	for tag := range r.tags() {
		for _, arch := range architectures {
			p := r.platform(tag, arch)
			t.Logf("%s%s linux/%s: %.1f MiB", r.tags()[""].Annotations["org.opencontainers.image.ref.name"], tag, arch,
				float64(p.size)/(1<<20))
			if p.size > maxSize {
				t.Errorf("tag %q for %s: %d bytes compressed, want at most %d", tag, arch, p.size, maxSize)
			}
			if size, most := float64(p.size)/(1<<20), reported[tag][arch]; size > most || size < most-sizeMargin {
				t.Errorf("docs/image.md says that tag %q for %s has at most %v MiB; it has %.1f, so the page should "+
					"say %.0f", tag, arch, most, size, math.Ceil(size+0.5))
			}
			if p.config.Architecture != arch || p.config.OS != "linux" ||
				len(p.config.RootFS.DiffIDs) != len(p.manifest.Layers) {
				t.Errorf("tag %q for %s: configuration %+v", tag, arch, p.config)
			}
			if got := p.config.Config.Entrypoint; len(got) != 1 || got[0] != "/usr/local/bin/kube-proxy" {
				t.Errorf("tag %q for %s: entry point %q, want upstream's", tag, arch, got)
			}
			checkLabels(t, p)
			checkFiles(t, p)
			checkPrograms(t, p, arch)
			checkBinary(t, p, arch)
			if tag == "" {
				checkIPTables(t, p)
				continue
			}
			for name := range p.files {
				if strings.HasPrefix(name, "lib") || strings.HasPrefix(name, "usr/lib") ||
					strings.HasPrefix(name, "usr/sbin") {
					t.Errorf("the image with the binary alone has /%s", name)
				}
			}
		}
	}
}

// On Windows both tags have the same image, with the program for it.
func TestWindowsImage(t *testing.T) {
	r := openImage(t, builtImage(t))
	for tag := range r.tags() {
		p := r.on(tag, platforms[2])
		program, err := pe.NewFile(bytes.NewReader(p.files["Files/"+windowsProgram].body))
		if err != nil || program.Machine != pe.IMAGE_FILE_MACHINE_AMD64 {
			t.Fatalf("tag %q: the program is for no Windows on amd64: %v", tag, err)
		}
		if got := p.config.Config; len(p.manifest.Layers) != 1 ||
			!slices.Equal(got.Entrypoint, []string{windowsProgram}) || len(got.Env) > 0 || p.config.OSVersion != "" {
			t.Errorf("tag %q: %d layers, entry point %q, environment %q, version of Windows %q", tag,
				len(p.manifest.Layers), got.Entrypoint, got.Env, p.config.OSVersion)
		}
		for _, name := range []string{"copyright", "licences/stdlib/LICENSE", "licences/k8s.io/client-go/LICENSE"} {
			if len(p.files["Files/"+windowsDocs+name].body) == 0 {
				t.Errorf("tag %q: %s is missing", tag, name)
			}
		}
		checkLabels(t, p)
		if p.size > maxSize {
			t.Errorf("tag %q: %d bytes compressed, want at most %d", tag, p.size, maxSize)
		}
	}
}

// sizeMargin is how far an image may be below its size in docs/image.md, in MiB: the page must not
// be far from the truth.
const sizeMargin = 4

// reportedSizes returns the sizes of images in docs/image.md: by tag and architecture, MiB at most.
func reportedSizes(t *testing.T) map[string]map[string]float64 {
	t.Helper()
	page, err := os.ReadFile("../../docs/image.md")
	if err != nil {
		t.Fatal(err)
	}
	reported := map[string]map[string]float64{}
	for _, row := range regexp.MustCompile("(?m)^- `localhost/kube-proxy:TAG([a-z-]*)`[^`]* at\\s+most (\\d+) / "+
		"(\\d+) MiB$").FindAllStringSubmatch(string(page), -1) {
		reported[row[1]] = map[string]float64{}
		for k, arch := range []string{"amd64", "arm64"} {
			reported[row[1]][arch], err = strconv.ParseFloat(row[2+k], 64)
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return reported
}

func checkLabels(t *testing.T, p readPlatform) {
	t.Helper()
	for _, key := range []string{"title", "description", "version", "revision", "created", "licenses"} {
		key = "org.opencontainers.image." + key
		if p.config.Config.Labels[key] == "" || p.manifest.Annotations[key] == "" {
			t.Errorf("no label %s: %v, %v", key, p.config.Config.Labels, p.manifest.Annotations)
		}
	}
	for key, value := range p.config.Config.Labels {
		if strings.Contains(value, "://") || strings.HasSuffix(key, ".source") {
			t.Errorf("label %s: %s names a host", key, value)
		}
	}
}

// No program is in the image that is not listed here, none has more rights than its caller, and
// root owns all files.
func checkFiles(t *testing.T, p readPlatform) {
	t.Helper()
	may := map[string]bool{binaryPath: true, "usr/sbin/xtables-nft-multi": true, "usr/sbin/xtables-legacy-multi": true,
		"usr/sbin/ipset": true}
	for _, h := range p.headers {
		if h.Uid != 0 || h.Gid != 0 || h.Mode&0o7000 != 0 || h.Mode&0o022 != 0 && h.Typeflag != '2' ||
			len(h.PAXRecords) > 0 && h.PAXRecords["path"] == "" {
			t.Errorf("/%s: owner %d:%d, mode %o, %v", h.Name, h.Uid, h.Gid, h.Mode, h.PAXRecords)
		}
	}
	for name, f := range p.files {
		executable := !f.dir && f.link == "" && f.mode&0o111 != 0
		library := strings.HasPrefix(name, "usr/lib/") && strings.Contains(path.Base(name), ".so")
		if executable && !may[name] && !library {
			t.Errorf("/%s can be run: what needs it?", name)
		}
		if f.link != "" {
			if _, end := p.files.walk(name); end == "" && name != "lib64" {
				t.Errorf("/%s leads to %s, where nothing is", name, f.link)
			}
		}
	}
	for _, name := range []string{"etc/passwd", "etc/group", "usr/share/doc/kube-proxy/copyright",
		licenceDir("stdlib") + "/LICENSE", licenceDir("k8s.io/client-go") + "/LICENSE"} {
		if len(p.files[name].body) == 0 {
			t.Errorf("/%s is missing", name)
		}
	}
}

// Every ELF file is for this architecture, and finds its loader and its libraries in the image.
func checkPrograms(t *testing.T, p readPlatform, arch string) {
	t.Helper()
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]
	seen := 0
	for name, f := range p.files {
		if !bytes.HasPrefix(f.body, []byte(elf.ELFMAG)) {
			continue
		}
		seen++
		e, err := elf.NewFile(bytes.NewReader(f.body))
		if err != nil {
			t.Errorf("/%s: %v", name, err)
			continue
		}
		if e.Machine != machine {
			t.Errorf("/%s is for %s, in the image for %s", name, e.Machine, arch)
		}
		loader, libraries, err := f.needs()
		if err != nil {
			t.Errorf("/%s: %v", name, err)
		}
		if _, end := p.files.walk(loader); loader != "" && end == "" {
			t.Errorf("/%s: its loader %s is missing", name, loader)
		}
		for _, l := range libraries {
			if _, end := p.files.walk("usr/lib/" + triplets[arch] + "/" + l); end == "" {
				t.Errorf("/%s: its library %s is missing", name, l)
			}
		}
		if name == binaryPath && (loader != "" || len(libraries) > 0) {
			t.Errorf("/%s needs %s %v: the image with it alone has no libraries", name, loader, libraries)
		}
	}
	if seen == 0 {
		t.Error("no program")
	}
}

// The binary has the commit and the modules, and no information about the machine that built it.
func checkBinary(t *testing.T, p readPlatform, arch string) {
	t.Helper()
	info, err := buildinfo.Read(bytes.NewReader(p.files[binaryPath].body))
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if settings["GOARCH"] != arch || settings["-trimpath"] != "true" || settings["CGO_ENABLED"] != "0" {
		t.Errorf("built with %v", settings)
	}
	if bytes.Contains(p.files[binaryPath].body, []byte("/cmd/kube-proxy/main.go")) &&
		!bytes.Contains(p.files[binaryPath].body, []byte("kube-proxy/cmd/kube-proxy/main.go")) {
		t.Error("it has paths of the machine that built it")
	}
}

// The programs for modes iptables and ipvs, and the extensions that their rules name.
func checkIPTables(t *testing.T, p readPlatform) {
	t.Helper()
	names := []string{"usr/sbin/ipset", "etc/os-release", "var/lib/dpkg/status.d/iptables",
		"usr/share/doc/libc6/copyright"}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, backend := range []string{"-nft", "-legacy"} {
			for _, suffix := range []string{"", "-restore", "-save"} {
				names = append(names, "usr/sbin/"+family+backend+suffix)
			}
		}
	}
	for _, extension := range []string{"libxt_comment", "libxt_conntrack", "libxt_addrtype", "libxt_mark",
		"libxt_statistic", "libxt_recent", "libxt_set", "libxt_standard",
		"libxt_nfacct", "libxt_multiport", "libxt_sctp", "libxt_tcp", "libxt_udp", "libipt_REJECT", "libip6t_REJECT",
		"libxt_MASQUERADE", "libxt_DNAT", "libxt_REDIRECT"} {
		names = append(names, "usr/lib/"+triplets[p.config.Architecture]+"/xtables/"+extension+".so")
	}
	for _, name := range names {
		if _, end := p.files.walk(name); end == "" || len(p.files[end].body) == 0 {
			t.Errorf("/%s is missing", name)
		}
	}
}
