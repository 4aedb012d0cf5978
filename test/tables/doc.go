// Package tables reads the text that [lb.Table.String] writes. Tests say their tables in it.
package tables
