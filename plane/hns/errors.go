package hns

import (
	"errors"
	"fmt"
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

// kinds are the codes that say more than that something failed.
var kinds = map[uint32]error{
	CodeElementNotFound:  ErrNotFound,
	0x2:                  ErrNotFound, // ERROR_FILE_NOT_FOUND
	0x803b0001:           ErrNotFound, // network
	CodeEndpointNotFound: ErrNotFound,
	0x803b0003:           ErrNotFound, // layer
	0x803b0004:           ErrNotFound, // switch
	0x803b0005:           ErrNotFound, // subnet
	0x803b0006:           ErrNotFound, // adapter
	0x803b0007:           ErrNotFound, // switch port: the endpoint's container has gone
	0x803b0008:           ErrNotFound, // policy
	0x803b0009:           ErrNotFound, // port settings

	CodeAlreadyExists: ErrExists,
	0x1392:            ErrExists, // ERROR_OBJECT_ALREADY_EXISTS
	0x803b0010:        ErrExists, // network
	0x803b0012:        ErrExists, // policy
	CodePortExists:    ErrExists,
	0x803b0014:        ErrExists, // endpoint
	0x803b002b:        ErrExists, // endpoint, in a namespace

	CodeHasReferences: ErrInUse,
	0xaa:              ErrInUse, // ERROR_BUSY

	0x57:               ErrInvalid, // ERROR_INVALID_PARAMETER
	0x80070057:         ErrInvalid, // E_INVALIDARG
	0x803b000a:         ErrInvalid, // network
	0x803b000b:         ErrInvalid, // type of network
	0x803b000c:         ErrInvalid, // endpoint
	CodeInvalidPolicy:  ErrInvalid,
	0x803b000e:         ErrInvalid, // type of policy
	0x803b000f:         ErrInvalid, // operation on a remote endpoint
	0x803b0016:         ErrInvalid, // mapping
	0x803b0019:         ErrInvalid, // GUID
	0x803b001b:         ErrInvalid, // JSON
	0x803b001c:         ErrInvalid, // JSON reference
	0x803b001e:         ErrInvalid, // address
	0x803b002d:         ErrInvalid, // internal port
	CodeInvalidAddress: ErrInvalid,

	CodeNotImplemented: ErrUnsupported,
	0x32:               ErrUnsupported, // ERROR_NOT_SUPPORTED
	0x7f:               ErrUnsupported, // ERROR_PROC_NOT_FOUND
	0x803b0015:         ErrUnsupported, // request

	CodeAccessDenied: ErrDenied,
	0x80070005:       ErrDenied, // E_ACCESSDENIED

	CodeServiceUnreachable: ErrRPC,
	0x6bb:                  ErrRPC, // RPC_S_SERVER_TOO_BUSY
	0x6be:                  ErrRPC, // RPC_S_CALL_FAILED
	0x6bf:                  ErrRPC, // RPC_S_CALL_FAILED_DNE
	0x6d9:                  ErrRPC, // EPT_S_NOT_REGISTERED
	0x426:                  ErrRPC, // ERROR_SERVICE_NOT_ACTIVE
	0x803b0020:             ErrRPC, // the manager stopped

	CodeTimeout: ErrTimeout,
	0x102:       ErrTimeout, // WAIT_TIMEOUT
}

// KindOf tells what a code of Windows means, ErrFailed if it says no more. An HRESULT that holds an error of Win32 means the same as that.
func KindOf(code uint32) error {
	if kind, ok := kinds[code]; ok {
		return kind
	}
	const win32, facility = 0x80070000, 0xffff0000
	if code&facility == win32 {
		if kind, ok := kinds[code&^facility]; ok {
			return kind
		}
	}
	return ErrFailed
}

// Uncertain reports whether what a call asked for may have happened, or may yet happen, though it returned err.
func Uncertain(err error) bool {
	return errors.Is(err, ErrRPC) || errors.Is(err, ErrTimeout) || errors.Is(err, ErrFailed)
}
