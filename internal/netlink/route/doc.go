// Package route writes and reads the messages of rtnetlink about interfaces and their addresses, for those who keep addresses of their own
// on one. It is no client: package conn sends them.
package route
