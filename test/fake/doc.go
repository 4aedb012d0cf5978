// Package fake is a data plane in memory. It keeps the frontends, and refuses malformed ones as a
// kernel would.
//
// Frontends that accept are held like the others. [Plane] works correctly. [Faulty] wraps any plane
// and makes it fail: at times, for certain keys, half done, slowly, or by losing its state. Two
// planes hold the same if and only if their [Plane.Dump]s are the same.
package fake
