package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// spdxErrors returns the violations of SPDX 2.3's rules in a document, of the rules for its
// elements.
func spdxErrors(text []byte) (wrong []string) {
	add := func(s ...string) { wrong = append(wrong, strings.Join(s, " ")) }
	var loose map[string]any
	if err := json.Unmarshal(text, &loose); err != nil {
		return []string{err.Error()}
	}
	for _, key := range []string{"spdxVersion", "dataLicense", "SPDXID", "name", "documentNamespace", "creationInfo",
		"packages", "relationships"} {
		if loose[key] == nil {
			add("document lacks", key)
		}
	}
	var d spdxDocument
	strict := json.NewDecoder(bytes.NewReader(text))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&d); err != nil {
		return append(wrong, err.Error())
	}
	if d.SPDXVersion != "SPDX-2.3" || d.DataLicense != "CC0-1.0" || d.SPDXID != "SPDXRef-DOCUMENT" {
		add("head:", d.SPDXVersion, d.DataLicense, d.SPDXID)
	}
	if u, err := url.Parse(d.DocumentNamespace); err != nil || !u.IsAbs() || strings.Contains(d.DocumentNamespace,
		"#") {
		add("namespace", d.DocumentNamespace)
	}
	if _, err := time.Parse("2006-01-02T15:04:05Z", d.CreationInfo.Created); err != nil ||
		len(d.CreationInfo.Creators) == 0 {
		add("created", d.CreationInfo.Created)
	}
	for _, c := range d.CreationInfo.Creators {
		if !regexp.MustCompile(`^(Person|Organization|Tool): .+`).MatchString(c) {
			add("creator", c)
		}
	}
	ids := map[string]bool{d.SPDXID: true}
	for _, p := range d.Packages {
		if !regexp.MustCompile(`^SPDXRef-[A-Za-z0-9.-]+$`).MatchString(p.SPDXID) || ids[p.SPDXID] {
			add("identifier", p.SPDXID)
		}
		ids[p.SPDXID] = true
		wrong = append(wrong, packageErrors(p)...)
	}
	related := map[string]bool{}
	for _, r := range d.Relationships {
		if !ids[r.From] || !ids[r.To] || !slices.Contains([]string{"DESCRIBES", "CONTAINS", "STATIC_LINK"}, r.Type) {
			add("relationship", r.From, r.Type, r.To)
		}
		related[r.To] = true
	}
	for id := range ids {
		if id != d.SPDXID && !related[id] {
			add("nothing leads to", id)
		}
	}
	return wrong
}

var knownLicences = []string{"Apache-2.0", "MIT", "ISC", "MPL-2.0", "BSD-2-Clause", "BSD-3-Clause", "GPL-1.0-or-later",
	"GPL-2.0-only", "GPL-2.0-or-later", "GPL-3.0-only",
	"GPL-3.0-or-later", "LGPL-2.0-or-later", "LGPL-2.1-only", "LGPL-2.1-or-later", "LGPL-3.0-or-later", "Artistic-2.0",
	"GPL-1.0-only", "LGPL-2.0-only", "LGPL-3.0-only"}

func packageErrors(p spdxPackage) (wrong []string) {
	add := func(s ...string) { wrong = append(wrong, p.SPDXID+": "+strings.Join(s, " ")) }
	if p.Name == "" || p.VersionInfo == "" || p.DownloadLocation == "" || p.CopyrightText == "" ||
		p.LicenseConcluded == "" {
		add("a field is empty")
	}
	if p.FilesAnalyzed {
		add("files were not analyzed")
	}
	if p.LicenseDeclared != noAssertion {
		for id := range strings.SplitSeq(p.LicenseDeclared, " AND ") {
			if !slices.Contains(knownLicences, id) {
				add("licence", id)
			}
		}
	}
	for _, c := range p.Checksums {
		if c.Algorithm != "SHA256" || !hexDigest.MatchString(c.Value) {
			add("checksum", c.Algorithm, c.Value)
		}
	}
	for _, r := range p.ExternalRefs {
		if r.Category != "PACKAGE-MANAGER" || r.Type != "purl" ||
			!regexp.MustCompile(`^pkg:(oci|deb|golang)/[^ ]+@[^ ]+$`).MatchString(r.Locator) {
			add("reference", r.Category, r.Type, r.Locator)
		}
	}
	if !slices.Contains([]string{"CONTAINER", "APPLICATION", "LIBRARY"}, p.Purpose) {
		add("purpose", p.Purpose)
	}
	return wrong
}

func testBill(t *testing.T) []byte {
	t.Helper()
	b := newBill("localhost/kube-proxy:v1", time.Unix(1700000000, 0))
	p := program{body: []byte("elf"), golang: "go1.26", modules: []goModule{{"example.org/a_b", "v1.0.0", "MIT"},
		{"stdlib", "1.26", ""}}}
	digest := v1.Hash{Algorithm: "sha256", Hex: sha256Of([]byte("manifest"))}
	deb := debianPackage{pin: pin{Arch: "amd64", Name: "iptables", Version: "1:2+3", SHA256: strings.Repeat("0", 64)},
		source: "iptables", sourceVersion: "1:2", licence: "GPL-2.0-only"}
	b.image("localhost/kube-proxy", "v1", platforms[0], digest, p, []debianPackage{deb}, "MIT")
	b.image("localhost/kube-proxy", "v1-minimal", platforms[0], digest, p, nil, "MIT")
	text, err := b.text()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestBill(t *testing.T) {
	good := string(testBill(t))
	if wrong := spdxErrors([]byte(good)); len(wrong) > 0 {
		t.Errorf("%q\n%s", wrong, good)
	}
	if !bytes.Equal(testBill(t), []byte(good)) {
		t.Error("made again it differs")
	}
	for _, c := range [][2]string{{"SPDX-2.3", "SPDX-2.2"}, {"urn:uuid:", "no uri "},
		{`"2023-11-14T22:13:20Z"`, `"yesterday"`}, {"SPDXRef-binary-linux-amd64", "binary"},
		{`"STATIC_LINK"`, `"LIKES"`}, {"GPL-2.0-only", "GPL"}, {"pkg:deb/", "deb:"}, {"SHA256", "CRC"},
		{`"filesAnalyzed": false`, `"filesAnalysed": false`}} {
		bad := strings.Replace(good, c[0], c[1], 1)
		if bad == good || len(spdxErrors([]byte(bad))) == 0 {
			t.Errorf("%q in place of %q is not noticed", c[1], c[0])
		}
	}
}

// The bill of materials has the images by their digests, and each package and module that is in
// them.
func TestBillOfImage(t *testing.T) {
	archive := builtImage(t)
	r := openImage(t, archive)
	text, err := os.ReadFile(billFile(archive))
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range spdxErrors(text) {
		t.Error(wrong)
	}
	var d spdxDocument
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, p := range d.Packages {
		listed[p.Name+" "+p.VersionInfo] = true
		for _, c := range p.Checksums {
			listed[c.Value] = true
		}
		if strings.HasPrefix(p.SPDXID, "SPDXRef-go-") && p.LicenseDeclared == noAssertion {
			t.Errorf("%s: the licence of its text is not known to image/licence.go", p.SPDXID)
		}
	}
	for tag := range r.tags() {
		_, manifests := r.manifests(tag)
		for _, m := range manifests {
			p, program := r.on(tag, *m.Platform), binaryPath
			if m.Platform.OS == "windows" {
				program = "Files/" + windowsProgram
			}
			want := []string{m.Digest.Hex, sha256Of(p.files[program].body)}
			info, err := buildinfo.Read(bytes.NewReader(p.files[program].body))
			if err != nil {
				t.Fatal(err)
			}
			for _, mod := range info.Deps {
				want = append(want, mod.Path+" "+mod.Version)
			}
			for name, f := range p.files {
				if strings.HasPrefix(name, "var/lib/dpkg/status.d/") && !f.dir {
					control := parseControl(string(f.body))
					want = append(want, control["Package"]+" "+control["Version"])
				}
			}
			for _, w := range want {
				if !listed[w] {
					t.Errorf("the bill of materials lacks %s, of tag %q for %s", w, tag, m.Platform)
				}
			}
		}
	}
}
