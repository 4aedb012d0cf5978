// Package thread runs functions that change what belongs to a thread of the system, such as its
// namespaces.
package thread
