package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
)

const (
	// sumsFile has the SHA-256 sums, as sha256sum writes them.
	sumsFile = "SHA256SUMS"
	// provenanceFile has an in-toto statement with SLSA provenance.
	provenanceFile = "provenance.intoto.json"
	// repository names the source in documents. The project has no public address yet.
	repository = "kube-proxy"
)

// documents writes what describes the files: the bill of materials, the provenance, the sums.
func (r *release) documents() error {
	if err := r.json("sbom.spdx.json", r.bill()); err != nil {
		return err
	}
	if err := r.json(provenanceFile, r.provenance()); err != nil {
		return err
	}
	var sums strings.Builder
	for _, f := range r.files {
		fmt.Fprintf(&sums, "%s  %s\n", sum(f.body), f.name)
	}
	return r.write(sumsFile, []byte(sums.String()))
}

func (r *release) json(name string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return r.write(name, append(text, '\n'))
}

func sum(body []byte) string {
	s := sha256.Sum256(body)
	return hex.EncodeToString(s[:])
}

// object is a JSON object; its fields are written in their order by name.
type object = map[string]any

// bill returns the bill of materials: each archive, and the modules that are linked into it (SPDX
// 2.3).
func (r *release) bill() object {
	const none = "NOASSERTION"
	var packages, relations []object
	have := map[string]bool{}
	id := func(parts ...string) string {
		return "SPDXRef-" + strings.Map(func(c rune) rune {
			if strings.ContainsRune("/@+_~!", c) {
				return '-'
			}
			return c
		}, strings.Join(parts, "-"))
	}
	add := func(parent, relation, id string, p object) {
		p["SPDXID"], p["downloadLocation"], p["filesAnalyzed"] = id, none, false
		p["licenseConcluded"], p["copyrightText"] = none, none
		if !have[id] {
			have[id] = true
			packages = append(packages, p)
		}
		relations = append(relations, object{"spdxElementId": parent, "relationshipType": relation,
			"relatedSpdxElement": id})
	}
	for _, f := range r.files {
		archive := id("archive", f.name)
		add("SPDXRef-DOCUMENT", "DESCRIBES", archive, object{"name": f.name, "versionInfo": r.version,
			"licenseDeclared": "Apache-2.0", "primaryPackagePurpose": "ARCHIVE",
			"checksums": []object{{"algorithm": "SHA256", "checksumValue": sum(f.body)}}})
		modules := r.materials[f.name]
		for _, m := range slices.Sorted(maps.Keys(modules)) {
			add(archive, "STATIC_LINK", id("go", m, modules[m]), object{"name": m, "versionInfo": modules[m],
				"licenseDeclared": none, "primaryPackagePurpose": "LIBRARY",
				"externalRefs": []object{{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
					"referenceLocator": "pkg:golang/" + m + "@" + url.PathEscape(modules[m])}}})
		}
	}
	name := "kube-proxy-" + r.version
	return object{"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": name,
		"documentNamespace": "urn:" + repository + ":" + name + ":" + r.commit,
		"creationInfo":      object{"created": r.committed, "creators": []string{"Tool: kube-proxy-make-release"}},
		"packages":          packages, "relationships": relations}
}

// provenance returns how the files were made, so that anybody can make them again.
func (r *release) provenance() object {
	var subjects []object
	for _, f := range r.files {
		subjects = append(subjects, object{"name": f.name, "digest": object{"sha256": sum(f.body)}})
	}
	return object{"_type": "https://in-toto.io/Statement/v1", "predicateType": "https://slsa.dev/provenance/v1",
		"subject": subjects, "predicate": object{
			"buildDefinition": object{
				"buildType":          "urn:" + repository + ":make-release:v1",
				"externalParameters": object{"version": r.version, "url": r.url},
				"resolvedDependencies": []object{
					{"name": repository, "digest": object{"gitCommit": r.commit}}, {"name": r.golang},
				},
			},
			"runDetails": object{"builder": object{"id": "urn:" + repository + ":make-release"}},
		}}
}
