// Package fake is a data plane in memory. It keeps rows and backend sets as a strict kernel would: what is
// referred to must exist, what is referred to cannot go, and a malformed row is refused.
//
//	fronts  192.0.2.7:80/tcp ─▶ row, its routes name sets ─┐
//	sets    shop/web:http/tcp/cluster ─▶ backends  ◀───────┘ counted
//
// Rows that accept are held like the others. [Plane] does as asked. [Faulty] stands before any plane and makes it fail: now and then, for certain keys,
// half done, slowly, or by losing its state. Two planes hold the same if and only if their [Plane.Dump]s
// are the same.
package fake
