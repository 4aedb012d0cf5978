//go:build linux

package ebpf

import (
	"fmt"
	"sync"

	"github.com/cilium/ebpf"

	"kube-proxy/plane/ebpf/bpf"
)

// switches are the settings of the programs. The configuration may change them at any time, from
// any goroutine, and takes effect at the next call of a program.
type switches struct {
	mu     sync.Mutex
	want   bpf.LBSettings
	waits  bool      // see [Config.Wait]
	config *ebpf.Map // nil while there are no programs, or while they are off
}

// change changes what is wanted, and has the programs follow.
func (s *switches) change(f func(*bpf.LBSettings)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.want)
	if s.config == nil {
		return nil
	}
	return put(s.config, s.now())
}

// now returns what is wanted now.
func (s *switches) now() bpf.LBSettings {
	now := s.want
	if s.waits {
		now.Scope = scopeHost
	}
	return now
}

// goOn ends the wait if the programs of an earlier process connect sockets of pods.
func (s *switches) goOn(config *ebpf.Map) error {
	was, err := settingsIn(config)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits = s.waits && (was.On == 0 || was.Scope == scopeHost)
	return err
}

// endWait has the programs connect sockets of pods, if they shall.
func (s *switches) endWait() error {
	return s.change(func(*bpf.LBSettings) { s.waits = false })
}

// wanted returns the settings that programs follow or shall follow.
func (s *switches) wanted() bpf.LBSettings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now()
}

// use has programs follow from now on.
func (s *switches) use(config *ebpf.Map) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.config = config
	return put(config, s.now())
}

// forget leaves the programs as they are.
func (s *switches) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.config = nil
}

// off has programs connect no new sockets until they are used again.
func (s *switches) off(config *ebpf.Map) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.config = nil
	off := s.want
	off.On = 0
	return put(config, off)
}

func settingsIn(config *ebpf.Map) (s bpf.LBSettings, err error) {
	if err := config.Lookup(uint32(0), &s); err != nil {
		return s, fmt.Errorf("read the settings of the programs: %w", err)
	}
	return s, nil
}

// put writes the settings with a heartbeat.
func put(config *ebpf.Map, s bpf.LBSettings) (err error) {
	if s.Heartbeat, err = monotonic(); err != nil {
		return err
	}
	if err := config.Put(uint32(0), s); err != nil {
		return fmt.Errorf("configure the programs: %w", err)
	}
	return nil
}

// follow takes whose sockets are connected to endpoints, and whether bind() is guarded, from the
// configuration.
func follow(s *bpf.LBSettings, sockets string, guard bool) {
	s.On, s.Scope, s.Guard = flag(sockets != "off"), flag(sockets == "host")*scopeHost, flag(guard)
}

// scopeHost is the scope of sockets of the node's network namespace (SCOPE_HOST).
const scopeHost = 1

func flag(is bool) uint8 {
	if is {
		return 1
	}
	return 0
}
