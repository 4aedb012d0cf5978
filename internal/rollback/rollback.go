// Package rollback undoes the changes of a batch in a plane's copy of the kernel's state, if the
// kernel refuses the batch.
//
// A plane changes its state immediately, while it collects the writes, so later changes of a batch
// see earlier ones. Recording the change of one endpoint costs a few closures, whatever the size of
// the state.
package rollback

import "slices"

// Log records previous values. A nil Log records nothing: a state under construction is discarded
// as a whole.
type Log struct{ undo []func() }

// Undo restores all values from when the Log was empty.
func (l *Log) Undo() {
	for _, f := range slices.Backward(l.undo) {
		f()
	}
	l.undo = nil
}

// Put sets m[k]; Undo reverts that.
func Put[K comparable, V any](l *Log, m map[K]V, k K, v V) {
	Entry(l, m, k)
	m[k] = v
}

// Delete deletes m[k]; Undo reverts that.
func Delete[K comparable, V any](l *Log, m map[K]V, k K) {
	Entry(l, m, k)
	delete(m, k)
}

// Entry records m[k], or its absence.
func Entry[K comparable, V any](l *Log, m map[K]V, k K) {
	if l == nil {
		return
	}
	was, had := m[k]
	l.undo = append(l.undo, func() {
		if had {
			m[k] = was
		} else {
			delete(m, k)
		}
	})
}

// Value records *v.
func Value[T any](l *Log, v *T) {
	if l == nil {
		return
	}
	was := *v
	l.undo = append(l.undo, func() { *v = was })
}

// Func records a function that undoes any other change.
func Func(l *Log, undo func()) {
	if l != nil {
		l.undo = append(l.undo, undo)
	}
}
