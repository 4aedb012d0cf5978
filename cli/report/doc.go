// Package report writes what a bug report needs into one file, without the names and addresses of
// the cluster.
//
//	answers of the proxy ─▶ [Redactor] ─▶ [Write] ─▶ tar.gz
//
// A [Redactor] replaces names and addresses by pseudonyms that are the same in all files of a
// report and differ between reports. *Not here:* which queries are sent.
package report
