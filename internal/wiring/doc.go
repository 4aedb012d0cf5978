// Package wiring turns the configuration into the settings of the packages that serve: of a mode's
// planes, of policy, of the host, of the client of the API server. The process wires itself by
// them, and commands answer by them what it would do.
package wiring
