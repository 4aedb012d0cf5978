// Package ordered has a heap whose elements know their places, so that any of them can be removed.
package ordered

// Element is what a [Heap] holds.
type Element interface {
	// Place returns where the heap notes the element's index.
	Place() *int
}

// Heap implements [heap.Interface]. Before reports whether one element precedes another.
type Heap[E Element] struct {
	List   []E
	Before func(a, b E) bool
}

// First returns the first element, or the zero value.
func (h *Heap[E]) First() (first E) {
	if len(h.List) > 0 {
		first = h.List[0]
	}
	return first
}

// Len returns the number of elements.
func (h *Heap[E]) Len() int { return len(h.List) }

// Less compares two elements.
func (h *Heap[E]) Less(i, j int) bool { return h.Before(h.List[i], h.List[j]) }

// Swap swaps two elements.
func (h *Heap[E]) Swap(i, j int) {
	h.List[i], h.List[j] = h.List[j], h.List[i]
	*h.List[i].Place(), *h.List[j].Place() = i, j
}

// Push appends an E.
func (h *Heap[E]) Push(x any) {
	*x.(E).Place() = len(h.List)
	h.List = append(h.List, x.(E))
}

// Pop removes the last element.
func (h *Heap[E]) Pop() any {
	last := len(h.List) - 1
	e := h.List[last]
	clear(h.List[last:])
	h.List = h.List[:last]
	return e
}
