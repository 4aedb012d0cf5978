package preflight

import (
	"context"
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/windows/registry"
)

// firewall reads the settings of the administrator, and those of a group policy that override them.
func firewall(context.Context) (f Firewall, err error) {
	if f.Program, err = os.Executable(); err != nil {
		return f, err
	}
	type profile struct{ on, blocks uint64 }
	profiles := map[string]profile{}
	for _, at := range []string{`SYSTEM\CurrentControlSet\Services\SharedAccess\Parameters\FirewallPolicy`,
		`SOFTWARE\Policies\Microsoft\WindowsFirewall`} {
		for _, name := range []string{"DomainProfile", "StandardProfile", "PublicProfile"} {
			p, known := profiles[name]
			if !known {
				p.blocks = 1
			}
			err := each(at+`\`+name, func(k registry.Key) error {
				for value, to := range map[string]*uint64{"EnableFirewall": &p.on, "DefaultInboundAction": &p.blocks} {
					if n, _, err := k.GetIntegerValue(value); err == nil {
						*to = n
					}
				}
				profiles[name] = p
				return nil
			})
			if err != nil {
				return f, err
			}
		}
		err := each(at+`\FirewallRules`, func(k registry.Key) error {
			names, err := k.ReadValueNames(0)
			for _, name := range names {
				if text, _, err := k.GetStringValue(name); err == nil {
					f.Rules = append(f.Rules, text)
				}
			}
			return err
		})
		if err != nil {
			return f, err
		}
	}
	for _, p := range profiles {
		f.Blocks = f.Blocks || p.on == 1 && p.blocks == 1
	}
	slices.Sort(f.Rules)
	return f, nil
}

// each calls f with a key of the machine, if it exists.
func each(path string, f func(registry.Key) error) error {
	k, err := registry.OpenKey(registry.LOCAL_MACHINE, path, registry.READ)
	if errors.Is(err, registry.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer k.Close()
	return f(k)
}
