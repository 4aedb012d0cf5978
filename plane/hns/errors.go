package hns

import (
	"errors"
	"fmt"
	"slices"
)

// Kinds of errors.
var (
	// ErrNotFound: no object has the id that the call or its request names.
	ErrNotFound = errors.New("element not found")
	// ErrExists: another object has the same address or key, or the system has the port.
	ErrExists = errors.New("already exists")
	// ErrInUse: other objects refer to this one.
	ErrInUse = errors.New("in use")
	// ErrInvalid: HNS rejects the request, now and later.
	ErrInvalid = errors.New("invalid request")
	// ErrUnsupported: this version of HNS does not have the call.
	ErrUnsupported = errors.New("not supported by this version of HNS")
	// ErrDenied: this process may not make the call.
	ErrDenied = errors.New("access denied")
	// ErrRPC: HNS is unreachable or disappeared during the call, whose outcome is unknown.
	ErrRPC = errors.New("HNS cannot be reached")
	// ErrTimeout: HNS did not answer in time. The outcome is unknown; the call may still take
	// effect.
	ErrTimeout = errors.New("HNS did not answer in time")
	// ErrFailed is any other failure.
	ErrFailed = errors.New("HNS failed")
)

// Error is a failed call to HNS.
type Error struct {
	// Call names the call, "create load balancer".
	Call string
	// Object is an id or a name, or "".
	Object string
	// Kind is one of the errors above.
	Kind error
	// Code is the Win32 error or HRESULT; 0 if Windows returned none.
	Code uint32
	// Text is the message of HNS, or "".
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

// Codes of winerror.h that HNS returns.
const (
	CodeAccessDenied    = 0x5
	CodeAlreadyExists   = 0xb7  // another load balancer (kubernetes/kubernetes#139519)
	CodeElementNotFound = 0x490 // hcs.ErrElementNotFound

	CodeEndpointNotFound   = 0x803b0002
	CodeInvalidPolicy      = 0x803b000d // an invalid load balancer
	CodePortExists         = 0x803b0013 // a load balancer or the system has the port
	CodeHasReferences      = 0x803b002c
	CodeInvalidAddress     = 0x803b002f // also a used address (kubernetes/kubernetes#100962)
	CodeNotImplemented     = 0x80004001
	CodeServiceUnreachable = 0x6ba // RPC_S_SERVER_UNAVAILABLE
	CodeTimeout            = 0x5b4
)

// kinds classifies the codes of winerror.h and HNS.
var kinds = map[error][]uint32{
	// A file, network, endpoint, layer, switch, subnet, adapter, switch port (the container is
	// gone), policy or port setting.
	ErrNotFound: {CodeElementNotFound, 0x2, 0x803b0001, CodeEndpointNotFound, 0x803b0003, 0x803b0004, 0x803b0005,
		0x803b0006, 0x803b0007, 0x803b0008, 0x803b0009},
	// An object, network, policy, port, endpoint, or endpoint in a namespace.
	ErrExists: {CodeAlreadyExists, 0x1392, 0x803b0010, 0x803b0012, CodePortExists, 0x803b0014, 0x803b002b},
	ErrInUse:  {CodeHasReferences, 0xaa},
	// A parameter, network, network type, endpoint, policy, policy type, operation on a remote
	// endpoint, mapping, GUID, JSON, JSON reference, address or internal port.
	ErrInvalid: {0x57, 0x80070057, 0x803b000a, 0x803b000b, 0x803b000c, CodeInvalidPolicy, 0x803b000e, 0x803b000f,
		0x803b0016, 0x803b0019, 0x803b001b, 0x803b001c, 0x803b001e, 0x803b002d, CodeInvalidAddress},
	ErrUnsupported: {CodeNotImplemented, 0x32, 0x7f, 0x803b0015},
	ErrDenied:      {CodeAccessDenied, 0x80070005},
	// Server unavailable or busy, call failed or not made, no endpoint registered, service inactive
	// or stopping.
	ErrRPC:     {CodeServiceUnreachable, 0x6bb, 0x6be, 0x6bf, 0x6d9, 0x426, 0x803b0020},
	ErrTimeout: {CodeTimeout, 0x102},
}

// KindOf classifies a Windows code, with [ErrFailed] as the default. An HRESULT that wraps a Win32
// error means that error.
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

// Uncertain reports whether a call that returned err may have taken or may yet take effect.
func Uncertain(err error) bool {
	return errors.Is(err, ErrRPC) || errors.Is(err, ErrTimeout) || errors.Is(err, ErrFailed)
}
