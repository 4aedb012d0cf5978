// Package tables parses the text of [lb.Table.String]. Tests write their tables in it.
package tables
