// Package once remembers what was reported, so that it is not reported again. The zero values have
// reported nothing. For bounds by namespace see package ratelimit.
package once

// maxKeys is how many keys are remembered.
const maxKeys = 1000

// Keys remembers keys, such as texts. It keeps few: with many different ones it forgets all, so
// some are reported again. The caller locks it.
type Keys[K comparable] struct{ reported map[K]struct{} }

// First reports whether the key is new, and remembers it.
func (k *Keys[K]) First(key K) bool {
	if _, again := k.reported[key]; again {
		return false
	}
	if k.reported == nil || len(k.reported) >= maxKeys {
		k.reported = map[K]struct{}{}
	}
	k.reported[key] = struct{}{}
	return true
}

// Error remembers the last error of an operation that is retried. The caller locks it.
type Error struct{ text string }

// News reports whether the error differs from the last one, and remembers it.
func (e *Error) News(err error) bool {
	before := e.text
	e.text = err.Error()
	return e.text != before
}

// Any reports whether there was an error.
func (e *Error) Any() bool { return e.text != "" }
