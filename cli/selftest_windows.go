package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"

	"kube-proxy/cli/selftest"
	"kube-proxy/internal/kernel"
	"kube-proxy/internal/wiring"
	"kube-proxy/plane/hns"
)

// onThisSystem adds the parts for Windows. It takes the writer lock, because the audit of a running
// kube-proxy would remove the objects of the test.
func onThisSystem(test *selftest.Config, disruptive bool) error {
	lock, err := kernel.OpenLock(wiring.WriterGroup)
	if err == nil {
		err = lock.Take()
	}
	if err != nil {
		return fmt.Errorf("taking the writer lock: %w: stop the kube-proxy of this node first", err)
	}
	test.Elevated = windows.GetCurrentProcessToken().IsElevated()
	if test.Mode == hns.Mode().Name {
		if test.HNS, err = hns.Open(); err != nil {
			return err
		}
	}
	if disruptive {
		test.Restart = func(ctx context.Context) error {
			return withService("hns", func(s *mgr.Service) error {
				return errors.Join(control(ctx, s, svc.Stop, svc.Stopped), start(ctx, s))
			})
		}
	}
	test.Service = func(ctx context.Context, check func(name, claim string, err error) bool) {
		testService(ctx, test.Program, check)
	}
	return nil
}

// withManager calls f with the service control manager.
func withManager(f func(*mgr.Mgr) error) error {
	m, err := mgr.Connect()
	if err != nil {
		return fmt.Errorf("connecting to the service control manager: %w", err)
	}
	return errors.Join(f(m), m.Disconnect())
}

// withService calls f with a service of this machine.
func withService(name string, f func(*mgr.Service) error) error {
	return withManager(func(m *mgr.Mgr) error {
		s, err := m.OpenService(name)
		if err != nil {
			return fmt.Errorf("opening the service %s: %w", name, err)
		}
		return errors.Join(f(s), s.Close())
	})
}

func start(ctx context.Context, s *mgr.Service) error {
	return errors.Join(s.Start(), state(ctx, s, svc.Running, 0))
}

// control sends a request to a service, and waits for a state.
func control(ctx context.Context, s *mgr.Service, request svc.Cmd, want svc.State) error {
	if _, err := s.Control(request); err != nil {
		return fmt.Errorf("sending request %d to the service %s: %w", request, s.Name, err)
	}
	return state(ctx, s, want, 0)
}

// state waits until a service is in a state, in another process than the old one.
func state(ctx context.Context, s *mgr.Service, want svc.State, old uint32) error {
	return selftest.Await(ctx, selftestTimeout, func() error {
		now, err := s.Query()
		if err == nil && (now.State != want || old != 0 && now.ProcessId == old) {
			err = fmt.Errorf("the service %s is in state %d (process %d), want %d", s.Name, now.State, now.ProcessId,
				want)
		}
		return err
	})
}

// testService has the manager run this program under another name, without Services.
func testService(ctx context.Context, program string, check func(name, claim string, err error) bool) {
	const name = "kube-proxy-selftest"
	dir, err := os.MkdirTemp("", name)
	if err == nil {
		defer os.RemoveAll(dir)
		err = os.WriteFile(filepath.Join(dir, "node.yaml"), []byte("kind: Node\nmetadata: {name: selftest}\n"), 0o600)
	}
	if err == nil {
		_ = withService(name, (*mgr.Service).Delete) // a killed test may have left it
		err = withManager(func(m *mgr.Mgr) error {
			s, err := m.CreateService(name, program, mgr.Config{StartType: mgr.StartManual}, "--windows-service",
				"--proxy-mode=userspace", "--hostname-override=selftest", "--manifests="+dir, "--healthz-bind-address=",
				"--metrics-bind-address=", "--admin-socket=",
				"--logtostderr=false", "--log-file="+filepath.Join(dir, "log"))
			if err != nil {
				return err
			}
			return errors.Join(s.SetRecoveryActions([]mgr.RecoveryAction{
				{Type: mgr.ServiceRestart, Delay: time.Second}}, 60), s.Close())
		})
	}
	if !check("create", "the service control manager accepts this program as a service", err) {
		return
	}
	check("open", "the manager returns it", withService(name, func(s *mgr.Service) error {
		check("start", "it starts", start(ctx, s))
		check("parameter-change", "it goes on after a parameter change", control(ctx, s, svc.ParamChange, svc.Running))
		check("stop", "it stops in order", control(ctx, s, svc.Stop, svc.Stopped))
		check("crash", "it is started again after a crash", errors.Join(start(ctx, s), crash(ctx, s)))
		_, _ = s.Control(svc.Stop) // it may have stopped
		return s.Delete()
	}))
}

// crash kills the process of a service, and waits for the next one.
func crash(ctx context.Context, s *mgr.Service) error {
	before, err := s.Query()
	if err != nil {
		return err
	}
	p, err := os.FindProcess(int(before.ProcessId))
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		return err
	}
	return state(ctx, s, svc.Running, before.ProcessId)
}
