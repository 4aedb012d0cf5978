package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kube-proxy/test/e2e/controlplane"
)

// The API server takes a tenant's health check NodePort only from the range of NodePorts, and only
// if no Service has it. So no Service loses another port of the node's addresses by it (TN-98).
func TestChosenHealthCheckNodePort(t *testing.T) {
	begin(t)
	taken := int32(nodePortService(t, "port", "pod2").Port())
	free, none := taken^1, false // of one range, for that begins with an even number
	for i, c := range []struct {
		port int32
		want string // in the error; "" for none
	}{
		{80, "not in the valid range"},
		{taken, "already allocated"},
		{free, ""},
		{free, "already allocated"},
	} {
		s := controlplane.Service(fmt.Sprint("check", i), 80)
		s.Spec.Type, s.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, c.port
		s.Spec.AllocateLoadBalancerNodePorts = &none
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		switch err := bed.API.Create(t.Context(), s); {
		case c.want == "" && err != nil:
			t.Errorf("port %d: %v", c.port, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("port %d: error %v, want %q", c.port, err, c.want)
		}
	}
}
