package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"

	"kube-proxy/internal/scm"
)

// serviceName is the source of our events. A service that has its process for itself may have any
// name.
const serviceName = "kube-proxy"

// isService reports whether the service control manager has started the process.
var isService = sync.OnceValue(func() bool {
	is, err := svc.IsWindowsService()
	return is && err == nil
})

// standard are the streams for output and for errors. A service has no console: there the event log
// stands for both.
func standard() (out, errOut io.Writer) {
	if !isService() {
		return os.Stdout, os.Stderr
	}
	// Whether the source is registered affects only the display of events.
	_ = eventlog.InstallAsEventCreate(serviceName, eventlog.Error|eventlog.Warning|eventlog.Info)
	l, err := eventlog.Open(serviceName)
	if err != nil {
		return io.Discard, io.Discard // no reader
	}
	if exe, err := os.Executable(); err == nil {
		name := strings.TrimSuffix(exe, ".exe") + ".crash"
		switch crashed, err := scm.KeepCrashes(name+".log", name+".before.log"); {
		case err != nil:
			_ = l.Warning(1, fmt.Sprintf("a panic message of this service would be lost: %v", err))
		case crashed:
			_ = l.Error(1, fmt.Sprintf("the service has crashed before; %s.before.log says why", name))
		}
	}
	w := scm.NewWriter(l)
	// klog writes to os.Stderr beside its files.
	if r, stderr, err := os.Pipe(); err == nil {
		os.Stderr = stderr
		go func() { _, _ = io.Copy(w, r) }()
	}
	return w, w
}

// ends returns the signals that end the process: Ctrl-C and Ctrl-Break; and as SIGTERM that its
// window closes, its user logs off, or the machine or its container shuts down. The manager ends a
// service, which would receive a signal for every user that logs off.
func ends() []os.Signal {
	if isService() {
		return []os.Signal{os.Interrupt}
	}
	return []os.Signal{os.Interrupt, syscall.SIGTERM}
}

// asService runs the work as a service (--windows-service) until the service control manager
// says otherwise.
func asService(ctx context.Context, asked bool, work func(context.Context) error, reload func()) error {
	if !asked {
		return work(ctx)
	}
	h := handler{work: func(m scm.Manager) error { return scm.Serve(ctx, m, work, reload) }, failed: make(chan error)}
	ended := make(chan error, 1)
	go func() { ended <- svc.Run(serviceName, &h) }()
	select {
	case err := <-h.failed:
		return err
	case err := <-ended:
		if errors.Is(err, windows.ERROR_FAILED_SERVICE_CONTROLLER_CONNECT) {
			return fmt.Errorf("--windows-service (windowsRunAsService) is for a process that the service control "+
				"manager starts: leave it out: %w", err)
		}
		return err
	}
}

// handler is the service as package svc calls it.
type handler struct {
	work   func(scm.Manager) error
	failed chan error
}

// Execute is part of svc.Handler. It does not return after a failure: the manager would take that
// for a normal end, and runs recovery actions only for a process that ends without one.
func (h *handler) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (svcSpecific bool,
	code uint32) {
	m := manager{requests: make(chan scm.Request), status: status}
	end := make(chan struct{})
	defer close(end)
	go m.translate(requests, end)
	if err := h.work(&m); err != nil {
		h.failed <- err
		select {}
	}
	return false, 0
}

// manager translates between package scm and package svc.
type manager struct {
	requests chan scm.Request
	status   chan<- svc.Status
}

func (m *manager) Requests() <-chan scm.Request { return m.requests }

func (m *manager) Report(s scm.Status) {
	r := svc.Status{CheckPoint: s.Checkpoint, WaitHint: uint32(s.Hint.Milliseconds())}
	switch s.State {
	case scm.StartPending:
		r.State = svc.StartPending
	case scm.Running:
		r.State, r.Accepts = svc.Running, svc.AcceptStop|svc.AcceptShutdown|svc.AcceptParamChange
	case scm.StopPending:
		r.State = svc.StopPending
	}
	m.status <- r
}

func (m *manager) translate(requests <-chan svc.ChangeRequest, end <-chan struct{}) {
	known := map[svc.Cmd]scm.Request{svc.Interrogate: scm.Interrogate, svc.Stop: scm.Stop, svc.Shutdown: scm.Shutdown,
		svc.ParamChange: scm.ParamChange}
	for {
		select {
		case r := <-requests:
			select {
			case m.requests <- known[r.Cmd]:
			case <-end:
				return
			}
		case <-end:
			return
		}
	}
}

// noFollow is the flag of open that refuses symbolic links; Windows has none.
const noFollow = 0
