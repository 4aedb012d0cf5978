//go:build linux

package ebpf

import (
	"errors"
	"fmt"
	"io"
	"strings"
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

// loadIterator loads a program that the kernel runs for each element of socket storage. It uses
// those maps of the object that are shared, and no others.
func loadIterator(name string, shared map[string]*ebpf.Map) (*ebpf.Collection, error) {
	if err := hasBTF(); err != nil {
		return nil, err
	}
	spec, err := bpf.LoadStale()
	if err != nil {
		return nil, fmt.Errorf("read the program %s: %w", name, err)
	}
	for m := range spec.Maps { // of the headers
		if shared[m] == nil && !strings.HasPrefix(m, ".") {
			delete(spec.Maps, m)
		}
	}
	spec.Programs = map[string]*ebpf.ProgramSpec{name: spec.Programs[name]}
	obj, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		return nil, fmt.Errorf("load the program %s: %w", name, explain(err))
	}
	return obj, nil
}

// iterate runs an iterator over socket storage, and calls f with each record that it writes, which
// f must not keep. A record has no pointers, and the layout of C.
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
