// Package conntrack encodes and decodes messages of nf_conntrack_netlink, for listing the conntrack
// table, notifications, and deletion. Package netlink sends them. It does not know the owners of
// entries.
package conntrack
