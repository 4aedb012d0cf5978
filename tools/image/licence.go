package main

import (
	"maps"
	"path"
	"slices"
	"strings"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// licenceOf returns the licences of the texts in a folder, in SPDX's notation; "" if one of them is
// unknown.
func licenceOf(texts map[string][]byte, folder string) string {
	var all []string
	for name, body := range texts {
		if !strings.HasPrefix(name, folder) {
			continue
		}
		upper := strings.ToUpper(path.Base(name))
		if strings.HasPrefix(upper, "NOTICE") || strings.HasPrefix(upper, "PATENTS") {
			continue
		}
		id := classify(string(body))
		if id == "" {
			return ""
		}
		all = append(all, id)
	}
	return conjunction(all)
}

// conjunction joins licences that all hold. It is "" without any, or with an unknown one.
func conjunction(ids []string) string {
	var parts []string
	for _, id := range ids {
		if id == "" {
			return ""
		}
		parts = append(parts, strings.Split(id, " AND ")...)
	}
	slices.Sort(parts)
	return strings.Join(slices.Compact(parts), " AND ")
}

// classify identifies a licence by a sentence that no other has; "" if unknown.
func classify(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	has := func(s string) bool { return strings.Contains(text, s) }
	var ids []string
	if has("Apache License") && has("Version 2.0, January 2004") {
		ids = append(ids, "Apache-2.0")
	}
	if has("Permission is hereby granted, free of charge, to any person obtaining a copy") {
		ids = append(ids, "MIT")
	}
	if has("Permission to use, copy, modify, and") &&
		has("distribute this software for any purpose with or without fee") {
		ids = append(ids, "ISC")
	}
	if has("Mozilla Public License") && has("2.0") {
		ids = append(ids, "MPL-2.0")
	}
	if has("Redistribution and use in source and binary forms, with or without modification") {
		if has("endorse or promote products derived from this software") {
			ids = append(ids, "BSD-3-Clause")
		} else {
			ids = append(ids, "BSD-2-Clause")
		}
	}
	return conjunction(ids)
}

// debianNames are names of licences in Debian's copyright files, as SPDX calls them.
var debianNames = map[string]string{
	"gpl": "GPL-1.0-or-later", "gpl-1": "GPL-1.0-only", "gpl-1+": "GPL-1.0-or-later", "gpl-2": "GPL-2.0-only",
	"gpl-2+":  "GPL-2.0-or-later",
	"gpl-2.0": "GPL-2.0-only", "gpl-2.0+": "GPL-2.0-or-later", "gpl-3": "GPL-3.0-only", "gpl-3+": "GPL-3.0-or-later",
	"lgpl-2": "LGPL-2.0-only", "lgpl-2+": "LGPL-2.0-or-later", "lgpl-2.1": "LGPL-2.1-only",
	"lgpl-2.1+": "LGPL-2.1-or-later",
	"lgpl-3":    "LGPL-3.0-only", "lgpl-3+": "LGPL-3.0-or-later",
	"artistic-2": "Artistic-2.0", "artistic-2.0": "Artistic-2.0", "expat": "MIT", "mit": "MIT", "isc": "ISC",
	"apache-2.0":   "Apache-2.0",
	"bsd-2-clause": "BSD-2-Clause", "bsd-3-clause": "BSD-3-Clause",
}

// debianLicences returns the names of licences in a package's copyright file, if it has the
// machine-readable format, and their SPDX expression: "" unless all are known.
func debianLicences(copyright string) (names []string, spdx string) {
	if !strings.HasPrefix(copyright, "Format:") {
		return nil, ""
	}
	var ids []string
	for line := range strings.Lines(copyright) {
		if all, ok := strings.CutPrefix(line, "License:"); ok {
			for name := range strings.SplitSeq(strings.TrimSpace(all), " and ") {
				names = append(names, name)
				ids = append(ids, debianNames[strings.ToLower(name)])
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), conjunction(ids)
}
