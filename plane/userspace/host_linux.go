package userspace

import "kube-proxy/plane/userspace/capture"

var (
	chooseCapture  = capture.Choose
	removeCaptures = capture.Remove
)
