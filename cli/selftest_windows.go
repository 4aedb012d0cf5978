package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"

	"kube-proxy/cli/selftest"
	"kube-proxy/internal/kernel"
	"kube-proxy/internal/pause"
	"kube-proxy/internal/wiring"
	"kube-proxy/plane/hns"
)

// onThisSystem adds what the test uses of Windows. No other kube-proxy may write meanwhile: its audit would remove the test's objects.
func onThisSystem(test *selftest.Config, disruptive bool) error {
	lock, err := kernel.OpenLock(wiring.WriterGroup)
	if err == nil {
		err = lock.Take()
	}
	if err != nil {
		return fmt.Errorf("taking the right to write: %w: stop the kube-proxy of this node first", err)
	}
	if test.Mode == hns.Mode().Name {
		if test.HNS, err = hns.Open(); err != nil {
			return err
		}
	}
	if disruptive {
		test.Restart = func(ctx context.Context) error {
			return withService("hns", func(s *mgr.Service) error {
				return errors.Join(control(ctx, s, svc.Stop, svc.Stopped), s.Start(), state(ctx, s, svc.Running))
			})
		}
	}
	test.Service = func(ctx context.Context) []selftest.Claim { return tryService(ctx, test.Program) }
	return nil
}

// withService calls f with a service of this machine.
func withService(name string, f func(*mgr.Service) error) error {
	m, err := mgr.Connect()
	if err != nil {
		return fmt.Errorf("connecting to the service control manager: %w", err)
	}
	defer m.Disconnect()
	s, err := m.OpenService(name)
	if err != nil {
		return fmt.Errorf("opening the service %s: %w", name, err)
	}
	defer s.Close()
	return f(s)
}

// control asks something of a service, and waits until it is in a state.
func control(ctx context.Context, s *mgr.Service, request svc.Cmd, want svc.State) error {
	if _, err := s.Control(request); err != nil {
		return fmt.Errorf("asking %d of the service %s: %w", request, s.Name, err)
	}
	return state(ctx, s, want)
}

func state(ctx context.Context, s *mgr.Service, want svc.State) error {
	var now svc.Status
	var err error
	for end := time.Now().Add(selftestPatience); ctx.Err() == nil && time.Now().Before(end); {
		if now, err = s.Query(); err == nil && now.State == want {
			return nil
		}
		pause.For(ctx, 50*time.Millisecond)
	}
	return errors.Join(err, fmt.Errorf("the service %s is in state %d, want %d", s.Name, now.State, want))
}

// tryService has the manager run this program under another name, with no Services.
func tryService(ctx context.Context, program string) (all []selftest.Claim) {
	claim := func(name, text string, err error) {
		all = append(all, selftest.Claim{Name: name, Text: text, Err: err})
	}
	const name = "kube-proxy-selftest"
	dir, err := os.MkdirTemp("", name)
	if err == nil {
		defer os.RemoveAll(dir)
		err = os.WriteFile(filepath.Join(dir, "node.yaml"), []byte("kind: Node\nmetadata: {name: selftest}\n"), 0o600)
	}
	if err == nil {
		err = makeService(name, program, "--windows-service", "--proxy-mode=userspace", "--hostname-override=selftest", "--manifests="+dir,
			"--healthz-bind-address=", "--metrics-bind-address=", "--admin-socket=", "--logtostderr=false", "--log-file="+filepath.Join(dir, "log"))
	}
	claim("create", "the service control manager takes this program as a service", err)
	if err != nil {
		return all
	}
	claim("open", "the manager gives it back", withService(name, func(s *mgr.Service) error {
		claim("start", "it starts", errors.Join(s.Start(), state(ctx, s, svc.Running)))
		claim("parameter-change", "it goes on after a parameter change", control(ctx, s, svc.ParamChange, svc.Running))
		claim("stop", "it stops in order", control(ctx, s, svc.Stop, svc.Stopped))
		claim("crash", "it is started again after a crash", errors.Join(s.Start(), state(ctx, s, svc.Running), crash(ctx, s)))
		_, _ = s.Control(svc.Stop) // it may have stopped
		return s.Delete()
	}))
	return all
}

func makeService(name, program string, args ...string) error {
	m, err := mgr.Connect()
	if err != nil {
		return err
	}
	defer m.Disconnect()
	s, err := m.CreateService(name, program, mgr.Config{StartType: mgr.StartManual}, args...)
	if err != nil {
		return err
	}
	return errors.Join(s.SetRecoveryActions([]mgr.RecoveryAction{{Type: mgr.ServiceRestart, Delay: time.Second}}, 60), s.Close())
}

// crash ends the process of a service, and waits for the next one.
func crash(ctx context.Context, s *mgr.Service) error {
	before, err := s.Query()
	if err != nil {
		return err
	}
	p, err := os.FindProcess(int(before.ProcessId))
	if err == nil {
		err = p.Kill()
	}
	for end := time.Now().Add(selftestPatience); err == nil && ctx.Err() == nil && time.Now().Before(end); {
		if now, _ := s.Query(); now.State == svc.Running && now.ProcessId != before.ProcessId {
			return nil
		}
		pause.For(ctx, 50*time.Millisecond)
	}
	return errors.Join(err, errors.New("no other process runs"))
}
