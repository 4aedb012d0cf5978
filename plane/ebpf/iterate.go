//go:build linux

package ebpf

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"kube-proxy/plane/ebpf/bpf"
)

// hasBTF is an error if the kernel does not describe its types, which programs need that read its
// structs.
func hasBTF() error {
	_, err := btf.LoadKernelSpec()
	return lacking([]need{{"BTF (CONFIG_DEBUG_INFO_BTF)", func() error { return err }}})
}

// loadIterator loads programs that the kernel runs for each element of socket storage, or for each
// socket. They use the maps that are shared, and their own.
func loadIterator(shared map[string]*ebpf.Map, names ...string) (*ebpf.Collection, error) {
	if err := hasBTF(); err != nil {
		return nil, err
	}
	spec, err := bpf.LoadStale()
	if err != nil {
		return nil, fmt.Errorf("read the programs %v: %w", names, err)
	}
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool { return !slices.Contains(names, name) })
	spec.Variables = nil
	used := map[string]bool{}
	for _, p := range spec.Programs {
		for _, i := range p.Instructions {
			used[i.Reference()] = true
		}
	}
	maps.DeleteFunc(spec.Maps, func(name string, _ *ebpf.MapSpec) bool { return !used[name] })
	maps.DeleteFunc(shared, func(name string, _ *ebpf.Map) bool { return !used[name] })
	obj, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		return nil, fmt.Errorf("load the programs %v: %w", names, explain(err))
	}
	return obj, nil
}

// iterate runs an iterator over socket storage, or nil for the sockets of the thread's network
// namespace, and calls f with each record that it writes, which f must not keep. A record has no
// pointers, and the layout of C.
func iterate[T any](program *ebpf.Program, storage *ebpf.Map, f func(*T)) error {
	it, err := link.AttachIter(link.IterOptions{Program: program, Map: storage})
	if err != nil {
		return fmt.Errorf("attach an iterator: %w", err)
	}
	defer it.Close()
	file, err := it.Open()
	if err != nil {
		return fmt.Errorf("open an iterator: %w", err)
	}
	defer file.Close()
	return records(file, f)
}

// records reads records in batches.
func records[T any](in io.Reader, f func(*T)) error {
	batch := make([]T, 1024)
	size := int(unsafe.Sizeof(batch[0]))
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&batch[0])), len(batch)*size)
	for have := 0; ; {
		n, err := in.Read(raw[have:])
		have += n
		for i := range have / size {
			f(&batch[i])
		}
		have = copy(raw, raw[have-have%size:have])
		if errors.Is(err, io.EOF) && have == 0 {
			return nil
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("read an iterator: %w", err)
		}
	}
}
