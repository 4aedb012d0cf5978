package ipvs

import (
	"fmt"
	"net/netip"
	"strings"
)

// SaveService returns the line of a virtual service for "ipvsadm --restore". ipvsadm-save -n prints
// the same, except that it prints marks from 0x80000000 on as negative numbers, which --restore
// refuses.
func SaveService(s Service) string {
	var b strings.Builder
	fmt.Fprintf(&b, "-A %s -s %s", saveID(s.ServiceID), s.Scheduler)
	if s.Flags&Persistent != 0 {
		fmt.Fprintf(&b, " -p %d", s.Timeout)
		if s.Netmask != s.Family.WholeAddress() {
			fmt.Fprintf(&b, " -M %s", saveNetmask(s.Family, s.Netmask))
		}
	}
	if s.Flags&OnePacket != 0 {
		b.WriteString(" -o")
	}
	if f := saveFlags(s.Scheduler, s.Flags); f != "" {
		fmt.Fprintf(&b, " -b %s", f)
	}
	return b.String() + "\n"
}

// SaveDestination returns the line of a destination for "ipvsadm --restore".
func SaveDestination(id ServiceID, d Destination) string {
	return fmt.Sprintf("-a %s -r %s -%c -w %d\n", saveID(id), d.Addr, "mlig????"[d.Forwarding&7], d.Weight)
}

func saveID(id ServiceID) string {
	switch {
	case id.Mark != 0 && id.Family == IPv6:
		return fmt.Sprintf("-f %d -6", id.Mark)
	case id.Mark != 0:
		return fmt.Sprintf("-f %d", id.Mark)
	}
	return fmt.Sprintf("%s %s", map[uint8]string{6: "-t", 17: "-u", 132: "--sctp-service"}[id.Proto], id.Addr)
}

func saveNetmask(f Family, mask uint32) string {
	if f == IPv6 {
		return fmt.Sprint(mask)
	}
	return netip.AddrFrom4([4]byte{byte(mask >> 24), byte(mask >> 16), byte(mask >> 8), byte(mask)}).String()
}

// saveFlags returns the names of a scheduler's flags: sh and mh have their own names.
func saveFlags(scheduler string, flags Flags) string {
	names := []string{"flag-1", "flag-2", "flag-3"}
	if scheduler == "sh" || scheduler == "mh" {
		names = []string{scheduler + "-fallback", scheduler + "-port", "flag-3"}
	}
	var set []string
	for i, name := range names {
		if flags&(Sched1<<i) != 0 {
			set = append(set, name)
		}
	}
	return strings.Join(set, ",")
}
