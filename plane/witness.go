package plane

// Witness is a plane that can know who changed its objects.
type Witness interface {
	// ChangedBy says which processes changed which objects since the last call, as in "nft
	// (PID 4711) changed rules of chain a"; "" if that is not known. The names come from outside:
	// escape them for display.
	ChangedBy() string
}

// ChangedBy asks a plane, or a part of one, that may be a [Witness].
func ChangedBy(p any) string {
	if w, ok := p.(Witness); ok {
		return w.ChangedBy()
	}
	return ""
}
