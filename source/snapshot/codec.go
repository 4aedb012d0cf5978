package snapshot

import (
	"bytes"
	"encoding/gob"
	"errors"
	"io"
	"net/netip"
	"slices"
	"unique"

	"kube-proxy/cluster"
)

// format is the number of the encoding below. Every change of it, and of a type that it encodes,
// needs the next one.
const format = 4 // since 3: the unused addresses of a slice

// message is one of a file, encoded by [encoding/gob]. The first has the origin and the facts, each
// of the others a Service with its slices.
type message struct {
	Origin  *Origin
	Facts   *cluster.Facts
	Service *cluster.Service
	Places  []cluster.Place // that no message before has
	Slices  []slice
}

// slice is a [cluster.Slice]. It lacks the Service's name, and the trigger: a restart makes no old
// change new (SV-35).
type slice struct {
	Name      cluster.Name
	IPv6      bool
	Ports     []cluster.SlicePort
	Hints     []*cluster.Hints // each once
	Endpoints []endpoint
	Unused    []netip.Addr
}

// endpoint is a [cluster.Endpoint]. Place is the index in all Places of the file, Hints that in the
// slice, from 1; 0 is none.
type endpoint struct {
	Addr                        netip.Addr
	Ready, Serving, Terminating bool
	Place, Hints                int
}

// places has the index of each place of a file.
type places map[unique.Handle[cluster.Place]]int

// message returns the message for a Service.
func (ps places) message(v cluster.View) message {
	m := message{Service: v.Service}
	for _, s := range v.Slices {
		out := slice{Name: s.Name, IPv6: s.IPv6, Ports: s.Ports, Unused: s.Unused,
			Endpoints: make([]endpoint, 0, s.Endpoints.Len())}
		for e := range s.Endpoints.All() {
			place, known := ps[e.Where]
			if !known {
				place = len(ps)
				ps[e.Where] = place
				m.Places = append(m.Places, e.Place())
			}
			if e.Hints != nil && !slices.Contains(out.Hints, e.Hints) {
				out.Hints = append(out.Hints, e.Hints)
			}
			hints := 1 + slices.Index(out.Hints, e.Hints)
			out.Endpoints = append(out.Endpoints, endpoint{e.Addr, e.Ready, e.Serving, e.Terminating, place, hints})
		}
		m.Slices = append(m.Slices, out)
	}
	return m
}

// takeBack forgets the places of the latest message, which is left out.
func (ps places) takeBack(m message) {
	for _, p := range m.Places {
		delete(ps, cluster.At(p.Node, p.Zone))
	}
}

var errMalformed = errors.New("its content is malformed")

// read reads the messages of a file.
func read(content []byte) (*Snapshot, error) {
	s, messages := &Snapshot{}, gob.NewDecoder(bytes.NewReader(content))
	var known []unique.Handle[cluster.Place]
	for {
		var m message
		err := messages.Decode(&m)
		switch {
		case errors.Is(err, io.EOF):
			return s, nil
		case err != nil || !m.valid():
			return nil, errMalformed
		case m.Origin != nil:
			s.Origin, s.facts = *m.Origin, *m.Facts
			continue
		}
		s.services = append(s.services, m.Service)
		for _, p := range m.Places {
			known = append(known, cluster.At(p.Node, p.Zone))
		}
		for _, in := range m.Slices {
			endpoints, err := in.endpoints(known)
			if err != nil {
				return nil, err
			}
			s.slices = append(s.slices, &cluster.Slice{Name: in.Name, Service: m.Service.Name, IPv6: in.IPv6,
				Ports: in.Ports, Unused: in.Unused, Endpoints: endpoints})
		}
	}
}

// valid reports whether a message has what it must have, and its prefixes are prefixes.
func (m *message) valid() bool {
	invalid := func(p netip.Prefix) bool { return !p.IsValid() }
	if m.Origin == nil {
		return m.Service != nil && !slices.ContainsFunc(m.Service.SourceRanges, invalid)
	}
	return m.Facts != nil && !slices.ContainsFunc(m.Facts.CIDRs, invalid) &&
		(m.Facts.Node == nil || !slices.ContainsFunc(m.Facts.Node.PodCIDRs, invalid))
}

func (s *slice) endpoints(known []unique.Handle[cluster.Place]) (cluster.Endpoints, error) {
	hints := append([]*cluster.Hints{nil}, s.Hints...)
	all := make([]cluster.Endpoint, 0, len(s.Endpoints))
	for _, e := range s.Endpoints {
		if min(e.Place, e.Hints) < 0 || e.Place >= len(known) || e.Hints >= len(hints) {
			return cluster.Endpoints{}, errMalformed
		}
		all = append(all, cluster.Endpoint{Addr: e.Addr, Where: known[e.Place], Ready: e.Ready, Serving: e.Serving,
			Terminating: e.Terminating, Hints: hints[e.Hints]})
	}
	return cluster.EndpointsOf(all...), nil
}
