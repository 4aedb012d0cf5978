// Package fake is a data plane in memory. It keeps the rows that packets would meet, and refuses malformed ones as a kernel would.
//
// Rows that accept are held like the others. [Plane] does as asked. [Faulty] stands before any plane and makes it fail: now
// and then, for certain keys, half done, slowly, or by losing its state. Two planes hold the same if and only if their
// [Plane.Dump]s are the same.
package fake
