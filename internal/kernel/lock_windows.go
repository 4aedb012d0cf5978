package kernel

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
)

// ErrHeld is returned by [Lock.Take] while another process has the lock.
var ErrHeld = errors.New("another process holds the lock")

// lockAccess makes the administrators the owner of the lock, and gives them and the system access.
const lockAccess = "O:BAG:BAD:P(A;;GA;;;BA)(A;;GA;;;SY)"

// Lock is a lock of this machine that ends with the process: a named mutex, held by its existence.
// Ownership of a mutex belongs to a thread, which Go does not offer.
type Lock struct {
	name   *uint16
	access *windows.SecurityAttributes
	handle windows.Handle // of the mutex; 0 while this process has it not
}

// OpenLock returns the lock of that number. Only an administrator or the system can take it.
func OpenLock(group uint16) (*Lock, error) {
	name, err := windows.UTF16PtrFromString(fmt.Sprintf(`Global\kube-proxy-%04x`, group))
	if err != nil {
		return nil, fmt.Errorf("name a mutex: %w", err)
	}
	sd, err := windows.SecurityDescriptorFromString(lockAccess)
	if err != nil {
		return nil, fmt.Errorf("set the permissions of a mutex: %w", err)
	}
	return &Lock{name: name, access: &windows.SecurityAttributes{
		Length: uint32(unsafe.Sizeof(windows.SecurityAttributes{})), SecurityDescriptor: sd}}, nil
}

// Take takes the lock, or returns ErrHeld. Holding it already is no error. Any program may make an
// object of this name first: one that is not the administrators' or the system's is another error.
func (l *Lock) Take() error {
	if l.handle != 0 {
		return nil
	}
	h, err := windows.CreateMutex(l.access, false, l.name)
	if err == nil {
		l.handle = h
		return nil
	}
	if !errors.Is(err, windows.ERROR_ALREADY_EXISTS) {
		return fmt.Errorf("create the mutex %s: %w", windows.UTF16PtrToString(l.name), err)
	}
	defer windows.CloseHandle(h)
	sd, err := windows.GetSecurityInfo(h, windows.SE_KERNEL_OBJECT, windows.OWNER_SECURITY_INFORMATION)
	if err != nil {
		return fmt.Errorf("read the owner of the mutex %s: %w", windows.UTF16PtrToString(l.name), err)
	}
	owner, _, err := sd.Owner()
	if err != nil {
		return fmt.Errorf("read the owner of the mutex %s: %w", windows.UTF16PtrToString(l.name), err)
	}
	if !owner.IsWellKnown(windows.WinBuiltinAdministratorsSid) && !owner.IsWellKnown(windows.WinLocalSystemSid) {
		return fmt.Errorf("the mutex %s belongs to %s, which is neither the administrators nor the system",
			windows.UTF16PtrToString(l.name), owner)
	}
	return ErrHeld
}

// Close gives the lock to the next.
func (l *Lock) Close() error {
	if l.handle == 0 {
		return nil
	}
	defer func() { l.handle = 0 }()
	return windows.CloseHandle(l.handle)
}

// Holder is the process that has the lock. Windows does not report it.
type Holder struct{}

// String returns "", because the holder is unknown.
func (Holder) String() string { return "" }

// Holder returns nothing.
func (l *Lock) Holder() Holder { return Holder{} }
