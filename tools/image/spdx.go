package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// The parts of SPDX 2.3 that the bill of materials uses.
type (
	spdxDocument struct {
		SPDXVersion       string             `json:"spdxVersion"`
		DataLicense       string             `json:"dataLicense"`
		SPDXID            string             `json:"SPDXID"`
		Name              string             `json:"name"`
		DocumentNamespace string             `json:"documentNamespace"`
		CreationInfo      spdxCreation       `json:"creationInfo"`
		Packages          []spdxPackage      `json:"packages"`
		Relationships     []spdxRelationship `json:"relationships"`
	}
	spdxCreation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		SPDXID           string         `json:"SPDXID"`
		Name             string         `json:"name"`
		VersionInfo      string         `json:"versionInfo"`
		Supplier         string         `json:"supplier,omitempty"`
		DownloadLocation string         `json:"downloadLocation"`
		FilesAnalyzed    bool           `json:"filesAnalyzed"`
		Checksums        []spdxChecksum `json:"checksums,omitempty"`
		LicenseConcluded string         `json:"licenseConcluded"`
		LicenseDeclared  string         `json:"licenseDeclared"`
		CopyrightText    string         `json:"copyrightText"`
		Comment          string         `json:"comment,omitempty"`
		ExternalRefs     []spdxRef      `json:"externalRefs,omitempty"`
		Purpose          string         `json:"primaryPackagePurpose,omitempty"`
	}
	spdxChecksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	spdxRef struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	spdxRelationship struct {
		From string `json:"spdxElementId"`
		Type string `json:"relationshipType"`
		To   string `json:"relatedSpdxElement"`
	}
)

const noAssertion = "NOASSERTION"

// bill is a bill of materials that is being made.
type bill struct {
	doc  spdxDocument
	have map[string]bool
}

func newBill(name string, created time.Time) *bill {
	return &bill{have: map[string]bool{}, doc: spdxDocument{SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0",
		SPDXID: "SPDXRef-DOCUMENT", Name: name,
		CreationInfo: spdxCreation{created.UTC().Format(time.RFC3339), []string{"Tool: kube-proxy-make-image"}}}}
}

// add adds a package, once, below the one that contains it.
func (b *bill) add(parent, relation string, p spdxPackage) {
	p.DownloadLocation, p.LicenseConcluded, p.CopyrightText = noAssertion, noAssertion, noAssertion
	if p.LicenseDeclared == "" {
		p.LicenseDeclared = noAssertion
	}
	if !b.have[p.SPDXID] {
		b.have[p.SPDXID] = true
		b.doc.Packages = append(b.doc.Packages, p)
	}
	if r := (spdxRelationship{parent, relation, p.SPDXID}); !b.have[fmt.Sprint(r)] {
		b.have[fmt.Sprint(r)] = true
		b.doc.Relationships = append(b.doc.Relationships, r)
	}
}

var notInID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// spdxID makes an identifier of its parts.
func spdxID(parts ...string) string {
	return "SPDXRef-" + notInID.ReplaceAllString(strings.Join(parts, "-"), "-")
}

func sha256Of(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// image adds an image for one platform and all that is in it.
func (b *bill) image(name, tag string, on v1.Platform, digest v1.Hash, p program, pkgs []debianPackage,
	licences string) {
	top := spdxID("image", tag, on.OS, on.Architecture)
	short := name[strings.LastIndex(name, "/")+1:]
	b.add(b.doc.SPDXID, "DESCRIBES", spdxPackage{SPDXID: top, Name: name, VersionInfo: tag, Purpose: "CONTAINER",
		LicenseDeclared: licences, Checksums: []spdxChecksum{{"SHA256", digest.Hex}},
		ExternalRefs: []spdxRef{{"PACKAGE-MANAGER", "purl", fmt.Sprintf("pkg:oci/%s@%s?arch=%s&tag=%s", short,
			url.QueryEscape(digest.String()), on.Architecture, tag)}}})
	binary, path, docs := spdxID("binary", on.OS, on.Architecture), binaryPath, docFolder
	if on.OS == "windows" {
		path, docs = windowsProgram, windowsDocs
	}
	b.add(top, "CONTAINS", spdxPackage{SPDXID: binary, Name: "kube-proxy", VersionInfo: strings.TrimSuffix(tag,
		minimal), Purpose: "APPLICATION", LicenseDeclared: "Apache-2.0",
		Checksums: []spdxChecksum{{"SHA256", sha256Of(p.body)}}, Comment: "/" + path + ", built with " + p.golang})
	for _, m := range p.modules {
		b.add(binary, "STATIC_LINK", spdxPackage{SPDXID: spdxID("go", m.path, m.version), Name: m.path,
			VersionInfo: m.version, Purpose: "LIBRARY",
			LicenseDeclared: m.licence, Comment: "licences: /" + docs + strings.TrimPrefix(licenceDir(m.path),
				docFolder), ExternalRefs: []spdxRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + m.path + "@" +
				url.PathEscape(m.version)}}})
	}
	for _, d := range pkgs {
		b.add(top, "CONTAINS", spdxPackage{SPDXID: spdxID("deb", d.Name, d.Arch), Name: d.Name, VersionInfo: d.Version,
			Supplier: "Organization: Debian", Purpose: "LIBRARY", LicenseDeclared: d.licence,
			Comment: fmt.Sprintf("source: %s %s; licences: /usr/share/doc/%s/copyright, which names %s",
				d.source, d.sourceVersion, d.Name, strings.Join(d.licences, ", ")),
			Checksums: []spdxChecksum{{"SHA256", d.SHA256}}, ExternalRefs: []spdxRef{{"PACKAGE-MANAGER", "purl",
				fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s&distro=%s&upstream=%s", d.Name, url.QueryEscape(d.Version),
					d.Arch, suite, url.QueryEscape(d.source+"@"+d.sourceVersion))}}})
	}
}

// text returns the document, named by its contents: equal images have equal documents.
func (b *bill) text() ([]byte, error) {
	plain, err := json.Marshal(b.doc)
	if err != nil {
		return nil, fmt.Errorf("write the bill of materials: %w", err)
	}
	sum := sha256.Sum256(plain)
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80 // RFC 9562: version 8, vendor-specific
	doc := b.doc
	doc.DocumentNamespace = fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
	text, err := json.MarshalIndent(doc, "", " ")
	return append(text, '\n'), err
}
