// Package nlconntest makes a kernel that does not answer, for the tests of users of
// internal/netlink.
package nlconntest
