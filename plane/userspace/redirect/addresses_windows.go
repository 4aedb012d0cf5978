package redirect

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"

	"kube-proxy/lb"
)

// interfaceVariable names the interface for service addresses, as with upstream's proxy of Windows.
// The default is the loopback interface, which every machine has and which does not announce its
// addresses to neighbours.
const interfaceVariable = "INTERFACE_TO_ADD_SERVICE_IP"

var (
	iphlpapi     = windows.NewLazySystemDLL("iphlpapi.dll")
	createEntry  = iphlpapi.NewProc("CreateUnicastIpAddressEntry")
	deleteEntry  = iphlpapi.NewProc("DeleteUnicastIpAddressEntry")
	advapi32     = windows.NewLazySystemDLL("advapi32.dll")
	createKey    = advapi32.NewProc("RegCreateKeyExW")
	bookVolatile = uintptr(1) // REG_OPTION_VOLATILE: a reboot deletes the key, like the addresses
)

// errAddressForbidden names the missing privilege, and the remedy.
var errAddressForbidden = errors.New("run as an administrator, or as the system")

// bookKey is the registry key that lists added addresses, one key for each family.
const bookKey = `SOFTWARE\kube-proxy\service-addresses`

// NewAddresses changes nothing. Missing privileges show at the first Reset.
func NewAddresses(cfg Config) (*Addresses, error) {
	b, err := openBook(cfg.Family)
	if err != nil {
		return nil, fmt.Errorf("redirect by addresses: open the key %s of the registry: %w", bookKey, err)
	}
	h := &helper{family: windows.AF_INET, book: b}
	if cfg.Family == lb.IPv6 {
		h.family = windows.AF_INET6
	}
	c := newAddresses(cfg.Family, h, b)
	callback := windows.NewCallback(func(_ uintptr, row *windows.MibUnicastIpAddressRow, kind uint32) uintptr {
		const parameter, add, remove = 0, 1, 2 // MIB_NOTIFICATION_TYPE
		if u, ok := unicastOf(row); ok && (kind == add || kind == remove) {
			c.noticed(u, kind == add)
		}
		return 0
	})
	// Without notifications, audits notice changes of other programs.
	_ = windows.NotifyUnicastIpAddressChange(h.family, callback, nil, false, &h.notify)
	return c, nil
}

// helper is the IP helper of Windows.
type helper struct {
	family uint16
	notify windows.Handle
	book   *keyBook
}

func (h *helper) close() error {
	if h.notify != 0 {
		_ = windows.CancelMibChangeNotify2(h.notify) // it returns after the last callback
	}
	return h.book.key.Close()
}

func (h *helper) target() (uint64, error) {
	all, err := net.Interfaces()
	if err != nil {
		return 0, fmt.Errorf("list the interfaces: %w", err)
	}
	name := os.Getenv(interfaceVariable)
	for _, i := range all {
		if name != "" && i.Name == name || name == "" && i.Flags&net.FlagLoopback != 0 {
			row := windows.MibIfRow2{InterfaceIndex: uint32(i.Index)}
			if err := windows.GetIfEntry2Ex(windows.MibIfEntryNormal, &row); err != nil {
				return 0, fmt.Errorf("look at interface %q: %w", i.Name, err)
			}
			return row.InterfaceLuid, nil
		}
	}
	if name == "" {
		return 0, errors.New("this machine has no loopback interface")
	}
	return 0, fmt.Errorf("%s: this machine has no interface %q", interfaceVariable, name)
}

func (h *helper) list() ([]unicast, error) {
	var table *windows.MibUnicastIpAddressTable
	if err := windows.GetUnicastIpAddressTable(h.family, &table); err != nil {
		if errors.Is(err, windows.ERROR_NOT_FOUND) {
			return nil, nil
		}
		return nil, err
	}
	defer windows.FreeMibTable(unsafe.Pointer(table))
	rows := unsafe.Slice(&table.Table[0], table.NumEntries)
	all := make([]unicast, 0, len(rows))
	for i := range rows {
		if u, ok := unicastOf(&rows[i]); ok {
			all = append(all, u)
		}
	}
	return all, nil
}

// create adds an address, and returns when it can be used.
func (h *helper) create(u unicast) error {
	row := rowOf(u)
	if err := call(createEntry, row); err != nil {
		return err
	}
	for range 100 {
		// The address exists, whatever the answer: an error would remove it from the book.
		if err := windows.GetUnicastIpAddressEntry(row); err != nil || row.DadState == preferred {
			break
		}
		time.Sleep(10 * time.Millisecond) // an interface with neighbours first checks that none has the address
	}
	return nil
}

func (h *helper) delete(u unicast) error { return call(deleteEntry, rowOf(u)) }

// preferred is IpDadStatePreferred: no other host has the address.
const preferred = 4

// call calls a function of the IP helper that takes a row.
func call(proc *windows.LazyProc, row *windows.MibUnicastIpAddressRow) error {
	if err := proc.Find(); err != nil { // Wine
		return err
	}
	code, _, _ := proc.Call(uintptr(unsafe.Pointer(row)))
	switch err := windows.Errno(code); err {
	case windows.NO_ERROR:
		return nil
	case windows.ERROR_OBJECT_ALREADY_EXISTS:
		return errAddressExists
	case windows.ERROR_NOT_FOUND:
		return errNoAddress
	case windows.ERROR_FILE_NOT_FOUND:
		return errNoInterface
	case windows.ERROR_ACCESS_DENIED:
		return fmt.Errorf("%w: %w", err, errAddressForbidden)
	default:
		return err
	}
}

// rowOf makes the row of an address, as InitializeUnicastIpAddressEntry would: valid forever, and
// without duplicate address detection.
func rowOf(u unicast) *windows.MibUnicastIpAddressRow {
	const forever, unchanged = 0xffffffff, 1 << 4 // IpPrefixOriginUnchanged
	row := &windows.MibUnicastIpAddressRow{
		InterfaceLuid: u.luid, PrefixOrigin: unchanged, SuffixOrigin: unchanged, ValidLifetime: forever,
		PreferredLifetime:  forever,
		OnLinkPrefixLength: u.bits, DadState: preferred,
	}
	if u.skip {
		row.SkipAsSource = 1
	}
	if u.addr.Is4() {
		to := (*windows.RawSockaddrInet4)(unsafe.Pointer(&row.Address))
		to.Family, to.Addr = windows.AF_INET, u.addr.As4()
	} else {
		row.Address.Family, row.Address.Addr = windows.AF_INET6, u.addr.As16()
	}
	return row
}

func unicastOf(row *windows.MibUnicastIpAddressRow) (u unicast, ok bool) {
	if row == nil {
		return u, false
	}
	u = unicast{luid: row.InterfaceLuid, bits: row.OnLinkPrefixLength, skip: row.SkipAsSource != 0}
	switch row.Address.Family {
	case windows.AF_INET:
		u.addr = netip.AddrFrom4((*windows.RawSockaddrInet4)(unsafe.Pointer(&row.Address)).Addr)
	case windows.AF_INET6:
		u.addr = netip.AddrFrom16(row.Address.Addr)
	default:
		return u, false
	}
	return u, true
}

// keyBook is a key of the registry: a value for each address, with the interface's LUID.
type keyBook struct{ key registry.Key }

func openBook(fam lb.Family) (*keyBook, error) {
	path, err := windows.UTF16PtrFromString(bookKey + `\` + fam.String())
	if err != nil {
		return nil, err
	}
	var key registry.Key
	code, _, _ := createKey.Call(uintptr(registry.LOCAL_MACHINE), uintptr(unsafe.Pointer(path)), 0, 0, bookVolatile,
		registry.QUERY_VALUE|registry.SET_VALUE, 0, uintptr(unsafe.Pointer(&key)), 0)
	if err := windows.Errno(code); err == windows.ERROR_ACCESS_DENIED {
		return nil, fmt.Errorf("%w: %w", err, errAddressForbidden)
	} else if err != windows.NO_ERROR {
		return nil, err
	}
	return &keyBook{key}, nil
}

func (b *keyBook) read() (map[netip.Addr]uint64, error) {
	names, err := b.key.ReadValueNames(0)
	if err != nil {
		return nil, err
	}
	all := make(map[netip.Addr]uint64, len(names))
	for _, name := range names {
		a, err := netip.ParseAddr(name)
		if err != nil {
			continue // not our entry
		}
		all[a], _, err = b.key.GetIntegerValue(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return all, nil
}

func (b *keyBook) write(a netip.Addr, luid uint64) error {
	return b.key.SetQWordValue(a.String(), luid)
}

func (b *keyBook) strike(a netip.Addr) error {
	err := b.key.DeleteValue(a.String())
	if errors.Is(err, registry.ErrNotExist) {
		return nil
	}
	return err
}
