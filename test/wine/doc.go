// Package wine runs programs for Windows in tests, under Debian's Wine.
//
// It proves that a program starts, reads flags, files and paths of Windows, serves TCP and UDP on
// existing addresses, receives Ctrl-C and the requests of the service control manager, and ends. It
// cannot prove anything about the Host Networking Service, addresses that a program adds to an
// interface, permissions (in Wine every user is an administrator), the event log, restarts of
// failed services, and speed.
//
// A machine is a folder of links to Wine's libraries, because Wine itself would copy 700 MB and
// fill a registry. Its disk C: is empty, its Z: is the root of the file system. Its programs end
// with the test, and run in the network namespace of the first of them.
package wine
