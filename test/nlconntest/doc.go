// Package nlconntest makes a kernel that does not answer, for the tests of those that ask by internal/netlink.
package nlconntest
