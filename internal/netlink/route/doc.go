// Package route encodes and decodes the messages of rtnetlink about interfaces, their addresses and
// routes. Package netlink sends them.
package route
