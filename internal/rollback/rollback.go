// Package rollback takes back what a batch has changed in a plane's memory of the kernel, if the
// kernel refuses the batch.
//
// A plane makes the changes in its state at once, while it collects what to write: so later changes
// of a batch find what earlier ones made. What the change of one endpoint costs to note is a few
// closures, and nothing of what it does not touch.
package rollback

import "slices"

// Log records previous values. A nil Log records nothing: a state under construction is discarded
// as a whole.
type Log struct{ undo []func() }

// Undo makes everything as it was when the Log was empty.
func (l *Log) Undo() {
	for _, f := range slices.Backward(l.undo) {
		f()
	}
	l.undo = nil
}

// Put sets m[k], which Undo takes back.
func Put[K comparable, V any](l *Log, m map[K]V, k K, v V) {
	Entry(l, m, k)
	m[k] = v
}

// Delete deletes m[k], which Undo takes back.
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

// Value notes *v.
func Value[T any](l *Log, v *T) {
	if l == nil {
		return
	}
	was := *v
	l.undo = append(l.undo, func() { *v = was })
}

// Func notes how to take back what is neither.
func Func(l *Log, undo func()) {
	if l != nil {
		l.undo = append(l.undo, undo)
	}
}
