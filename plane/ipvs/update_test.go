package ipvs

import "flag"

// update has golden tests write what they compare.
var update = flag.Bool("update", false, "write testdata anew")
