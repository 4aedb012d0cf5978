// Package wine runs programs for Windows in tests, under Debian's Wine.
//
// What it shows: that a program starts, reads flags, files and paths as Windows writes them, serves TCP and UDP on addresses that
// there are, hears Ctrl-C and the service control manager, and ends. What it cannot show: the Host Networking Service, which
// Wine does not have; addresses that a program adds to an interface, which Wine refuses; who may do what, for in Wine everybody
// is an administrator; the event log, for a service of Wine does not look like one to golang.org/x/sys/windows/svc; a manager that starts a
// service again which failed; and how fast Windows is.
//
// A machine is a folder of links to Wine's libraries: made in a moment, where Wine itself would copy 700 MB of them and fill a
// registry. Its disk C: is empty, its Z: is the root of the file system. What is run there ends with the test, and is in the network
// namespace in which it was started first.
package wine
