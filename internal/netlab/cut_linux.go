package netlab

import "fmt"

// Cut takes a host's cable out of the LAN's switch, or plugs it in again. The host's links stay up,
// so it notices nothing, and every packet to it and from it is lost.
func (l *Lab) Cut(host string, cut bool) error {
	ns, err := l.Namespace(switchHost)
	if err != nil {
		return err
	}
	r, err := openRTNL(ns)
	if err != nil {
		return fmt.Errorf("netlab: cut %s off: %w", host, err)
	}
	defer r.close()
	port, err := r.find(host)
	if err != nil {
		return fmt.Errorf("netlab: the switch has no port for %s: %w", host, err)
	}
	bridge := link{}
	if !cut {
		bridge, err = r.find("br0")
		if err != nil {
			return fmt.Errorf("netlab: find the switch's bridge: %w", err)
		}
	}
	if err := r.setMaster(port.index, bridge.index); err != nil {
		return fmt.Errorf("netlab: change the switch's port for %s: %w", host, err)
	}
	return nil
}
