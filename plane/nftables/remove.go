package nftables

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
)

// Remove deletes the table of a family, ours or upstream's, in one transaction, and reports whether there was one.
// A kernel without nf_tables has none. Connections that are established go on: conntrack keeps their translation.
func Remove(fam lb.Family) (removed bool, err error) {
	if fam != lb.IPv4 && fam != lb.IPv6 {
		return false, fmt.Errorf("nftables: remove: family %s: want IPv4 or IPv6", fam)
	}
	s, err := openSocket()
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("nftables: remove: %w", err)
	}
	defer s.close()
	f := familyOf(fam)
	there, err := s.hasTable(f.proto)
	if err != nil {
		return false, fmt.Errorf("look for table %s of %s: %w", TableName, fam, err)
	}
	if !there {
		return false, nil
	}
	err = s.removeTable(f.proto)
	if errors.Is(err, unix.ENOENT) { // somebody was faster
		return false, nil
	}
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("%w: run as root, or with CAP_NET_ADMIN; a table that a running process owns goes when that ends", err)
	}
	if err != nil {
		return false, fmt.Errorf("nftables: delete table %s of %s: %w", TableName, fam, err)
	}
	return true, nil
}

// hasTable reports whether the family has a table of our name. To ask does not load nf_tables' families.
func (s *socket) hasTable(proto byte) (there bool, err error) {
	s.seq++
	var e encoder
	at := e.message(unix.NFT_MSG_GETTABLE, unix.NLM_F_ACK, proto, s.seq)
	e.str(unix.NFTA_TABLE_NAME, TableName)
	e.endMessage(at)
	err = s.ask(e.b, func([]byte) { there = true })
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return false, nil // no table, no such family, or no nf_tables
	case err != nil:
		return false, probeError(err)
	}
	return there, nil
}

func (s *socket) removeTable(proto byte) error {
	var e encoder
	part := func(typ, flags uint16, family byte, res uint16, name string) {
		s.seq++
		at := e.raw(typ, flags, family, s.seq, res)
		if name != "" {
			e.str(unix.NFTA_TABLE_NAME, name)
		}
		e.endMessage(at)
	}
	part(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, "")
	part(msgType(unix.NFT_MSG_DELTABLE), unix.NLM_F_ACK, proto, 0, TableName)
	last := s.seq
	part(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, "")
	return s.commit([][]byte{e.b}, last)
}
