// Package policy decides what a Service means: from one service, its endpoints and this node to the rows
// that the desired table must hold. It is pure: no clock, no I/O, no state. All data planes show the same
// behaviour because the rules of behaviour.md 3.2 to 3.5 (SV-10…SV-67) stand here, once.
package policy
