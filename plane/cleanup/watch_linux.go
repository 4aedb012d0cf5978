package cleanup

import "kube-proxy/plane/internal/unanswered"

var removeWatch = unanswered.Remove
