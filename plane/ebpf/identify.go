//go:build linux

package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"kube-proxy/lb"
)

// nodeType is the type of the cookie in the BTF of the map config (bpf/maps.h). It marks the
// programs of every build of this proxy since v0.1: names of programs prove nothing, and their tags
// differ with every build and kernel.
const nodeType = "kube_proxy_node"

// oldSettings and oldPeer are the members of the structs by which builds without that mark are
// recognized: of the map config, and of the storage of sockets.
var (
	oldSettings = []string{"node", "on", "scope", "guard", "counts", "exempts", "pad", "most"}
	oldPeer     = []string{"addr", "backend_addr", "port", "backend_port", "backend", "set"}
)

// owner is the proxy of a program.
type owner struct {
	// node is the cookie of its network namespace; 0 if it is unknown, or not yet written.
	node uint64
	// config is the map of its settings, which the programs of one family share; 0 if none of the
	// attached programs has it.
	config ebpf.MapID
	// family is that of the program; 0 if it does not read it.
	family lb.Family
}

// identify returns the owners of those programs that a build of this proxy loaded. It recognizes
// them by the BTF of their maps, and needs CAP_SYS_ADMIN.
func identify(ids []ebpf.ProgramID) (map[ebpf.ProgramID]owner, error) {
	known, mapsOf := mapReader{}, map[ebpf.ProgramID][]ebpf.MapID{}
	owners, sharing := map[ebpf.ProgramID]owner{}, map[ebpf.MapID]owner{}
	for _, id := range ids {
		maps, err := mapsOfProgram(id)
		if err != nil {
			return nil, err
		}
		mapsOf[id] = maps
		var o owner
		for _, m := range maps {
			is, err := known.read(m)
			if err != nil {
				return nil, err
			}
			if is.settings {
				o.node, o.config = is.node, m
			}
			o.family = max(o.family, is.family)
		}
		if o.config != 0 {
			owners[id] = o
			for _, m := range maps {
				sharing[m] = o
			}
		}
	}
	for id, maps := range mapsOf { // of builds whose hooks of answers do not have the settings
		hasStorage := func(m ebpf.MapID) bool { return known[m].storage }
		if _, done := owners[id]; done || !slices.ContainsFunc(maps, hasStorage) {
			continue
		}
		owners[id] = owner{}
		for _, m := range maps {
			if o, shared := sharing[m]; shared {
				owners[id] = o
			}
		}
	}
	return owners, nil
}

// mapsOfProgram returns the maps of a program; none if it has gone.
func mapsOfProgram(id ebpf.ProgramID) ([]ebpf.MapID, error) {
	p, err := ebpf.NewProgramFromID(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open program %d: %w", id, explainIDs(err))
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return nil, fmt.Errorf("look at program %d: %w", id, err)
	}
	maps, _ := info.MapIDs()
	return maps, nil
}

// mapReader reads each map once.
type mapReader map[ebpf.MapID]knownMap

// knownMap is what a map is to a program of ours.
type knownMap struct {
	settings bool      // it is the map config
	storage  bool      // it is the storage of connected sockets
	node     uint64    // of settings
	family   lb.Family // of constants; 0 in other maps
}

func (r mapReader) read(id ebpf.MapID) (is knownMap, err error) {
	if is, done := r[id]; done {
		return is, nil
	}
	defer func() { r[id] = is }()
	m, err := ebpf.NewMapFromID(id)
	if errors.Is(err, fs.ErrNotExist) {
		return is, nil
	}
	if err != nil {
		return is, fmt.Errorf("open map %d: %w", id, explainIDs(err))
	}
	defer m.Close()
	if m.Type() != ebpf.Array && m.Type() != ebpf.SkStorage {
		return is, nil
	}
	types, err := typesOf(m)
	if err != nil || types == nil {
		return is, err
	}
	if is.family, err = familyIn(m, types); err != nil {
		return is, err
	}
	is.storage = m.Type() == ebpf.SkStorage && hasStruct(types, "peer", oldPeer)
	_, err = types.AnyTypesByName(nodeType)
	is.settings = m.Type() == ebpf.Array && (err == nil || hasStruct(types, "settings", oldSettings))
	if !is.settings {
		return is, nil
	}
	settings, err := m.LookupBytes(uint32(0))
	if err == nil && len(settings) >= 8 { // in every layout the cookie is first
		is.node = binary.NativeEndian.Uint64(settings)
	}
	return is, err
}

// familyIn returns the family in a map with the constants of programs; 0 for another map.
func familyIn(m *ebpf.Map, types *btf.Spec) (lb.Family, error) {
	var constants *btf.Datasec
	if types.TypeByName(".rodata", &constants) != nil || m.ValueSize() != constants.Size {
		return 0, nil
	}
	for _, v := range constants.Vars {
		if v.Type.TypeName() != "family" {
			continue
		}
		all, err := m.LookupBytes(uint32(0))
		if err != nil || len(all) <= int(v.Offset) {
			return 0, err
		}
		return lb.Family(all[v.Offset]), nil
	}
	return 0, nil
}

// typesOf returns the types of a map's keys and values, and nil if it has none.
func typesOf(m *ebpf.Map) (*btf.Spec, error) {
	info, err := m.Info()
	if err != nil {
		return nil, fmt.Errorf("look at a map: %w", err)
	}
	id, ok := info.BTFID()
	if !ok || id == 0 {
		return nil, nil
	}
	h, err := btf.NewHandleFromID(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the types of the map %s: %w", info.Name, explainIDs(err))
	}
	defer h.Close()
	types, err := h.Spec(nil)
	if err != nil { // of the kernel or a module, or of a kind that this program does not know
		return nil, nil
	}
	return types, nil
}

// hasStruct reports whether there is a struct of that name with exactly these members.
func hasStruct(types *btf.Spec, name string, members []string) bool {
	var s *btf.Struct
	return types.TypeByName(name, &s) == nil &&
		slices.EqualFunc(s.Members, members, func(m btf.Member, name string) bool { return m.Name == name })
}
