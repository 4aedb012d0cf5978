// Package conntrack writes and reads the messages of nf_conntrack_netlink, for those who list the conntrack table, listen to it, or delete from
// it. It is no client, package conn sends them; and it knows nothing of whose entries they are.
package conntrack
