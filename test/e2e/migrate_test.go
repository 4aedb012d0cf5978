package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kube-proxy/cli/migrate"
	"kube-proxy/internal/netlab"
	"kube-proxy/plane/all"
	"kube-proxy/test/e2e/controlplane"
)

// The commands of migrate for kubeadm and EKS change the DaemonSet and the ConfigMap of a real API
// server as a migration needs, keep the ConfigMap's other keys, and those of the way back restore
// both. Vendors' programs are left out.
func TestMigrateCommands(t *testing.T) {
	begin(t)
	bin, err := controlplane.Build(t.Context(), t.Logf, "kubectl")
	must(t, err)
	for _, c := range []struct{ distribution, configMap, key, folder string }{
		{"kubeadm", "kube-proxy", "config.conf", "/var/lib/kube-proxy"},
		{"eks", "kube-proxy-config", "config", "/var/lib/kube-proxy-config"},
	} {
		t.Run(c.distribution, func(t *testing.T) {
			ctx, client, space := t.Context(), bed.API.Client, metav1.NamespaceSystem
			dir := t.TempDir()
			admin, err := bed.API.Kubeconfig("migrate", controlplane.AdminUser, nil)
			must(t, err)
			configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: c.configMap},
				Data: map[string]string{c.key: "apiVersion: kubeproxy.config.k8s.io/v1alpha1\n" +
					"kind: KubeProxyConfiguration\nmode: iptables\n", "other": "stays"}}
			_, err = client.CoreV1().ConfigMaps(space).Create(ctx, configMap, metav1.CreateOptions{})
			must(t, err)
			defer client.CoreV1().ConfigMaps(space).Delete(ctx, c.configMap, metav1.DeleteOptions{})
			labels := map[string]string{"k8s-app": "kube-proxy"}
			inConfigMap := corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: c.configMap}}}
			set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy"}, Spec: appsv1.DaemonSetSpec{
				Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
					HostNetwork: true,
					Containers: []corev1.Container{{Name: "kube-proxy", Image: "upstream:v1",
						Command:      []string{"/usr/local/bin/kube-proxy", "--config=" + c.folder + "/" + c.key},
						VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: c.folder}}}},
					Volumes: []corev1.Volume{{Name: "config", VolumeSource: inConfigMap}}}}}}
			set, err = client.AppsV1().DaemonSets(space).Create(ctx, set, metav1.CreateOptions{})
			must(t, err)
			defer client.AppsV1().DaemonSets(space).Delete(ctx, "kube-proxy", metav1.DeleteOptions{})

			kubectl := filepath.Join(bin, "kubectl") + " --kubeconfig=" + admin + " -n " + space
			run := func(command string) {
				t.Helper()
				command = strings.NewReplacer("kubectl -n "+space, kubectl, "=IMAGE", "=ours:v1", "NODE", "node1").
					Replace(command)
				script := fmt.Sprintf("set -eu; cd %s; %s", dir, command)
				if _, err := bed.Command(ctx, netlab.Node1, "bash", "-c", script); err != nil {
					t.Fatal(err)
				}
			}
			run(kubectl + " get configmap/" + c.configMap + " daemonset/kube-proxy -o yaml >proxy.yaml")
			data, err := os.ReadFile(filepath.Join(dir, "proxy.yaml"))
			must(t, err)
			before, err := migrate.Read(all.Modes(), []migrate.Input{{Name: "proxy.yaml", Data: data}})
			must(t, err)
			r, err := migrate.Convert(all.Modes(), before, "nftables")
			must(t, err)
			if r.Distribution != c.distribution {
				t.Fatalf("it is %s", r.Distribution)
			}
			must(t, os.WriteFile(filepath.Join(dir, "config.yaml"), r.Config, 0o600))

			ours := func(steps []migrate.Step) {
				t.Helper()
				for _, step := range steps {
					if !strings.HasPrefix(step.Run, "aws ") {
						run(step.Run)
					}
				}
			}
			state := func() (*appsv1.DaemonSet, map[string]string) {
				t.Helper()
				set, err := client.AppsV1().DaemonSets(space).Get(ctx, "kube-proxy", metav1.GetOptions{})
				must(t, err)
				m, err := client.CoreV1().ConfigMaps(space).Get(ctx, c.configMap, metav1.GetOptions{})
				must(t, err)
				return set, m.Data
			}
			ours(r.Forth)
			now, stored := state()
			if image := now.Spec.Template.Spec.Containers[0].Image; image != "ours:v1" {
				t.Errorf("the image is %s", image)
			}
			if stored[c.key] != string(r.Config) || stored["other"] != "stays" || len(stored) != 2 {
				t.Errorf("the ConfigMap has %q", stored)
			}
			ours(r.Back)
			now, stored = state()
			if !equality.Semantic.DeepEqual(now.Spec.Template, set.Spec.Template) {
				t.Errorf("the way back leaves %+v, want %+v", now.Spec.Template, set.Spec.Template)
			}
			if !equality.Semantic.DeepEqual(stored, configMap.Data) {
				t.Errorf("the way back leaves %q", stored)
			}
		})
	}
}
