package system

import (
	"cmp"
	"errors"
	"fmt"

	"kube-proxy/mode"
)

// sysctls returns the sysctls that the mode needs.
func (s Settings) sysctls() []mode.Sysctl {
	if s.Mode.Sysctls == nil {
		return nil
	}
	return s.Mode.Sysctls(s.Asked)
}

// mode makes the settings that the mode needs from its start on, and with early those too that its
// planes make when it is safe.
func (j *job) mode(s Settings, early bool) {
	asks := fmt.Sprintf("--proxy-mode %s (mode)", s.Mode.Name)
	if s.Mode.Load != nil && j.tree.Live() && !j.plans {
		if err := s.Mode.Load(); err != nil {
			j.errs = append(j.errs, fmt.Errorf("%w; requested by %s", err, asks))
			return
		}
	}
	for _, c := range s.sysctls() {
		switch needs, err := j.needs(c); {
		case c.InitOnly && !early:
		case err != nil:
			j.errs = append(j.errs, err)
		case needs:
			j.set(sysctl{name: c.Name, value: c.Value, asks: cmp.Or(c.Asks, asks), optional: c.Optional})
		}
	}
}

// needs reports whether the running kernel needs it.
func (j *job) needs(c mode.Sysctl) (bool, error) {
	var always [2]int
	if c.From == always && c.Before == always {
		return true, nil
	}
	v, err := j.tree.Running()
	return v.AtLeast(c.From[0], c.From[1]) && (c.Before == always || !v.AtLeast(c.Before[0], c.Before[1])), err
}

// forwarding warns if the kernel does not forward translated packets. The administrator of the node
// sets it, except in mode ipvs.
func (j *job) forwarding(s Settings) {
	if s.Mode.Terminates {
		return
	}
	for _, f := range []struct {
		used       bool
		name, what string
	}{
		{s.IPv4, "net.ipv4.ip_forward", "IPv4"},
		{s.IPv6, "net.ipv6.conf.all.forwarding", "IPv6"},
	} {
		if !f.used {
			continue
		}
		value, err := j.tree.Sysctl(f.name)
		if err == nil && value != "0" {
			continue
		}
		if err == nil {
			err = errors.New("it is 0")
		}
		j.warn("", "Sysctl %s: %v: %s connections from pods and from other machines do not reach the endpoints of "+
			"Services; set it to 1 when the node is set up", f.name, err, f.what)
	}
}
