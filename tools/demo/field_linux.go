package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"kube-proxy/internal/netlab"
)

// Ports of every pod: those that answer with the pod's name (TCP and UDP), and a web page for curl.
var (
	whoPorts = []uint16{8080, 8081}
	pagePort = 8000
)

// field is the lab with responders in every pod.
//
// The sink, the target of default routes, has all service addresses and answers as "sink". It shows
// whether node1 lets a packet pass or drops it.
type field struct {
	lab *netlab.Lab
	// silence is the time without an answer after which a packet counts as dropped.
	silence time.Duration
	port    atomic.Uint32
	pages   []*http.Server
}

func newField(lab string, s *shop) (*field, error) {
	l, err := netlab.New(netlab.Options{Name: lab, Named: true})
	if err != nil {
		return nil, err
	}
	f := &field{lab: l}
	// A proxy that connects to backends gets no port reserved for clients.
	apart := func() error { return f.lab.LocalPorts(netlab.Node1, 10000, 29999) }
	for _, step := range []func() error{apart, f.openPods, f.lab.BaitSink, func() error { return f.listenSink(s) },
		f.calibrate} {
		if err := step(); err != nil {
			return nil, errors.Join(err, f.close())
		}
	}
	return f, nil
}

func (f *field) close() error {
	var errs []error
	for _, s := range f.pages {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, f.lab.Close())...)
}

// openPods starts the servers of the pods.
func (f *field) openPods() error {
	for _, h := range f.lab.Hosts() {
		if !h.Pod() {
			continue
		}
		for _, port := range whoPorts {
			for _, proto := range []netlab.Proto{netlab.TCP, netlab.UDP} {
				if _, err := f.lab.Listen(h.Name, proto, port); err != nil {
					return err
				}
			}
		}
		if err := f.openPage(h.Name); err != nil {
			return fmt.Errorf("web page of %s: %w", h.Name, err)
		}
	}
	return nil
}

func (f *field) openPage(host string) error {
	var listener net.Listener
	err := f.lab.Do(host, func() (err error) {
		listener, err = net.Listen("tcp", fmt.Sprintf(":%d", pagePort))
		return err
	})
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "this is %s; I see you as %s\n", host, r.RemoteAddr)
	})}
	f.pages = append(f.pages, server)
	go func() { _ = server.Serve(listener) }() // ends with Close
	return nil
}

// listenSink lets the sink answer the packets of the rows that reach it.
func (f *field) listenSink(s *shop) error {
	for _, r := range s.rows {
		if r.shot.Key.IsNodePort() {
			continue
		}
		if err := f.lab.BaitPort(netlab.Proto(r.shot.Proto.String()), r.shot.To.Port()); err != nil {
			return err
		}
	}
	return nil
}

// calibrate measures how long an answer takes at present.
func (f *field) calibrate() (err error) {
	f.silence, err = f.lab.Silence(whoPorts[0])
	return err
}
