package hns

import (
	"errors"
	"fmt"
	"slices"
)

// What became of a call to HNS.
var (
	// ErrNotFound: there is no object of the id that the call names, or that its request refers to.
	ErrNotFound = errors.New("element not found")
	// ErrExists: another object has the same key: an endpoint its address, a load balancer its address, port and protocol; or the
	// system has the port.
	ErrExists = errors.New("already exists")
	// ErrInUse: the object cannot go, others refer to it.
	ErrInUse = errors.New("in use")
	// ErrInvalid: HNS does not take the request, and will not take it later.
	ErrInvalid = errors.New("invalid request")
	// ErrUnsupported: this version of HNS does not know the call.
	ErrUnsupported = errors.New("not supported by this version of HNS")
	// ErrDenied: this process may not make the call.
	ErrDenied = errors.New("access denied")
	// ErrRPC: HNS is not there, or went away during the call. What the call asked for may have happened or not.
	ErrRPC = errors.New("HNS cannot be reached")
	// ErrTimeout: HNS did not answer in time. What the call asked for may have happened or not, or may happen later.
	ErrTimeout = errors.New("HNS did not answer in time")
	// ErrFailed is any other failure.
	ErrFailed = errors.New("HNS failed")
)

// Error is how HNS refused a call.
type Error struct {
	// Call is the name of the call, "create load balancer".
	Call string
	// Object is what it was about: an id or a name; "" where the call names none.
	Object string
	// Kind is one of the errors above.
	Kind error
	// Code is what Windows returned, an error of Win32 or an HRESULT; 0 if it was not Windows.
	Code uint32
	// Text is what HNS said, "" for nothing.
	Text string
}

func (e *Error) Error() string {
	s := e.Call
	if e.Object != "" {
		s += " " + e.Object
	}
	s += ": " + e.Kind.Error()
	if e.Code != 0 {
		s += fmt.Sprintf(" (0x%x)", e.Code)
	}
	if e.Text != "" {
		s += ": " + e.Text
	}
	return s
}

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }

// Codes of Windows that HNS returns, of winerror.h.
const (
	CodeAccessDenied    = 0x5
	CodeAlreadyExists   = 0xb7  // another load balancer (kubernetes/kubernetes#139519)
	CodeElementNotFound = 0x490 // hcs.ErrElementNotFound

	CodeEndpointNotFound   = 0x803b0002
	CodeInvalidPolicy      = 0x803b000d // a load balancer with something wrong in it
	CodePortExists         = 0x803b0013 // a load balancer, or the system, has the port
	CodeHasReferences      = 0x803b002c
	CodeInvalidAddress     = 0x803b002f // also an address that another endpoint has (kubernetes/kubernetes#100962)
	CodeNotImplemented     = 0x80004001
	CodeServiceUnreachable = 0x6ba // RPC_S_SERVER_UNAVAILABLE
	CodeTimeout            = 0x5b4
)

// kinds are the codes of winerror.h and of HNS that say more than that something failed.
var kinds = map[error][]uint32{
	// A file, a network, an endpoint, a layer, a switch, a subnet, an adapter, a port of a switch (the container is gone), a policy, a port's settings.
	ErrNotFound: {CodeElementNotFound, 0x2, 0x803b0001, CodeEndpointNotFound, 0x803b0003, 0x803b0004, 0x803b0005, 0x803b0006, 0x803b0007, 0x803b0008, 0x803b0009},
	// An object, a network, a policy, a port, an endpoint, an endpoint in a namespace.
	ErrExists: {CodeAlreadyExists, 0x1392, 0x803b0010, 0x803b0012, CodePortExists, 0x803b0014, 0x803b002b},
	ErrInUse:  {CodeHasReferences, 0xaa},
	// A parameter, a network and its type, an endpoint, a policy and its type, an operation on a remote endpoint, a mapping, a GUID, JSON and a
	// reference in it, an address, an internal port.
	ErrInvalid: {0x57, 0x80070057, 0x803b000a, 0x803b000b, 0x803b000c, CodeInvalidPolicy, 0x803b000e, 0x803b000f, 0x803b0016, 0x803b0019, 0x803b001b, 0x803b001c,
		0x803b001e, 0x803b002d, CodeInvalidAddress},
	ErrUnsupported: {CodeNotImplemented, 0x32, 0x7f, 0x803b0015},
	ErrDenied:      {CodeAccessDenied, 0x80070005},
	// The server is unavailable or too busy, the call failed or was not made, no endpoint is registered, the service is not active, it stops.
	ErrRPC:     {CodeServiceUnreachable, 0x6bb, 0x6be, 0x6bf, 0x6d9, 0x426, 0x803b0020},
	ErrTimeout: {CodeTimeout, 0x102},
}

// KindOf returns what a code of Windows means, ErrFailed if it says no more. An HRESULT that holds an error of Win32 means the same as that.
func KindOf(code uint32) error {
	for kind, codes := range kinds {
		if slices.Contains(codes, code) {
			return kind
		}
	}
	const win32, facility = 0x80070000, 0xffff0000
	if code&facility == win32 {
		return KindOf(code &^ facility)
	}
	return ErrFailed
}

// Uncertain reports whether what a call asked for may have happened, or may yet happen, though it returned err.
func Uncertain(err error) bool {
	return errors.Is(err, ErrRPC) || errors.Is(err, ErrTimeout) || errors.Is(err, ErrFailed)
}
