package manifests

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/test/golden"
)

// TestBad reads each file of testdata/bad and compares the reports, and the objects that are still
// used, with the golden text.
func TestBad(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatalf("testdata/bad: %d files, %v", len(files), err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			objects, problems := Parse(filepath.Base(path), data)
			got := ""
			for _, p := range problems {
				got += p.String() + "\n"
			}
			got += "used: " + names(objects) + "\n"
			golden.Equal(t, strings.TrimSuffix(path, ".yaml")+".golden", got)
			if len(problems) == 0 {
				t.Error("no problem is reported")
			}
		})
	}
}

func names(o Objects) string {
	var out []string
	for _, s := range o.Services {
		out = append(out, fmt.Sprintf("Service %v %v", s.Name, s.Ports))
	}
	for _, s := range o.Slices {
		out = append(out, fmt.Sprintf("EndpointSlice %v of %v: %d ports, %d endpoints", s.Name, s.Service, len(s.Ports),
			s.Endpoints.Len()))
	}
	for _, n := range o.Nodes {
		out = append(out, "Node "+n.Name)
	}
	for _, c := range o.CIDRs {
		out = append(out, "ServiceCIDR "+c.Name)
	}
	return strings.Join(out, ", ")
}

const web = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIPs: [10.96.0.7, "fd00::7"]
  ports:
  - {name: http, port: 80, targetPort: http}
`

// The API server's defaults are filled in: protocol, ipFamilies, type, policies.
func TestDefaults(t *testing.T) {
	objects, problems := Parse("web.yaml", []byte(web+`
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.0.5]}]
---
apiVersion: v1
kind: Service
metadata: {name: old}
spec: {clusterIP: 10.96.0.8, sessionAffinity: ClientIP, ports: [{port: 53, protocol: UDP}]}
`))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	want := Objects{
		Services: []*cluster.Service{{
			Name:       cluster.Name{Namespace: "shop", Name: "web"},
			ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.7"), netip.MustParseAddr("fd00::7")},
			Ports:      []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80}},
		}, {
			Name:            cluster.Name{Namespace: "default", Name: "old"},
			ClusterIPs:      []netip.Addr{netip.MustParseAddr("10.96.0.8")},
			AffinitySeconds: 10800,
			Ports:           []cluster.ServicePort{{Protocol: cluster.UDP, Port: 53}},
		}},
		Slices: []*cluster.Slice{{
			Name:    cluster.Name{Namespace: "shop", Name: "web-1"},
			Service: cluster.Name{Namespace: "shop", Name: "web"},
			Ports:   []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}},
			Endpoints: cluster.EndpointsOf(cluster.Endpoint{Addr: netip.MustParseAddr("10.1.0.5"), Ready: true,
				Serving: true}),
		}},
	}
	if !reflect.DeepEqual(objects, want) {
		t.Errorf("got  %+v\nwant %+v", objects, want)
	}
}

// JSON, "kind: List", typed lists without the kind of their items, anchors and merge keys are all
// read.
func TestForms(t *testing.T) {
	for _, c := range []struct{ name, text string }{
		{"json", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","namespace":"shop"},` +
			`"spec":{"clusterIP":"10.96.0.7","ports":[{"port":80}]}}`},
		{"json tabs", "{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"Service\",\n" +
			"\t\"metadata\": {\"name\": \"web\", \"namespace\": \"shop\"},\n" +
			"\t\"spec\": {\"clusterIP\": \"10.96.0.7\", \"ports\": [{\"port\": 80}]}\n}\n"},
		{"List", "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n" +
			"  metadata: {name: web, namespace: shop}\n  spec: {clusterIP: 10.96.0.7, ports: [{port: 80}]}\n"},
		{"ServiceList", "apiVersion: v1\nkind: ServiceList\nitems:\n- metadata: {name: web, namespace: shop}\n" +
			"  spec: {clusterIP: 10.96.0.7, ports: [{port: 80}]}\n"},
		{"comments", "# nothing\n---\n---\n# web\napiVersion: v1\nkind: Service\n" +
			"metadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.0.7, ports: [{port: 80}]}\n---\n"},
		{"merge", "apiVersion: v1\nkind: Service\nmetadata: &m {namespace: shop, name: web}\nspec:\n" +
			"  clusterIP: 10.96.0.7\n  ports:\n  - <<: &p {port: 80, protocol: UDP}\n    protocol: TCP\n"},
		{"crlf", "apiVersion: v1\r\nkind: Service\r\nmetadata: {name: web, namespace: shop}\r\n" +
			"spec: {clusterIP: 10.96.0.7, ports: [{port: 80}]}\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			objects, problems := Parse("f", []byte(c.text))
			if got, want := names(objects), "Service shop/web [{ 6 80 0}]"; got != want || len(problems) > 0 {
				t.Errorf("got %q, want %q; problems %v", got, want, problems)
			}
		})
	}
}

// Objects of other kinds and groups are left alone without a problem.
func TestOtherKinds(t *testing.T) {
	f := parse("f", []byte("kind: ConfigMap\napiVersion: v1\nmetadata: {name: x}\n---\n"+
		"{kind: Service, apiVersion: serving.knative.dev/v1, metadata: {name: x}, spec: {template: 1}}\n"))
	if len(f.problems)+len(f.objects) > 0 ||
		!slices.Equal(f.other, []string{"v1 ConfigMap", "serving.knative.dev/v1 Service"}) {
		t.Errorf("got %+v", f)
	}
}

// TN-85: a misspelled kind is not another kind: the problem names the kind that was meant.
func TestMisspelledKind(t *testing.T) {
	for text, want := range map[string]string{
		"kind: Serivce\napiVersion: v1\nmetadata: {name: x}\n": `f:1: kind: "Serivce" is unknown: ` +
			`did you mean Service?`,
		"apiVersion: discovery.k8s.io/v1\nkind: " +
			"EndpointSlices\nmetadata: {name: x}\n": `f:2: kind: "EndpointSlices" is unknown: did you mean ` +
			`EndpointSlice?`,
		"apiVersion: serving.knative.dev/v1\nkind: Services\nmetadata: {name: x}\n":                      "",
		"apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: x}\n":                    "",
		"apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: x}\n---\nkind: Secret\napiVersion: v1\n": "",
	} {
		f := parse("f", []byte(text))
		got := ""
		for _, p := range f.problems {
			got += p.String()
		}
		if len(f.objects) > 0 || !strings.HasPrefix(got, want) || (want == "") != (got == "") {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// SV-01: an object for another proxy is ignored without a problem.
func TestNotSelected(t *testing.T) {
	objects,
		problems := Parse("f", []byte(strings.ReplaceAll(web, "namespace: shop", "namespace: shop, labels: "+
		"{service.kubernetes.io/service-proxy-name: other}")))
	if len(objects.Services)+len(problems) > 0 {
		t.Errorf("got %v, %v", objects, problems)
	}
}

// FuzzParse: any text gives objects or problems; the objects are as the package promises.
func FuzzParse(f *testing.F) {
	f.Add([]byte(web))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("kind: Service\nmetadata: &m {name: x, <<: *m}"))
	files, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		objects, problems := Parse("f", data)
		seen := map[any]bool{}
		for _, s := range objects.Services {
			if seen[s.Name] || s.Name.Name == "" || s.Name.Namespace == "" || len(s.ClusterIPs) > 2 {
				t.Errorf("bad Service %+v", s)
			}
			seen[s.Name] = true
			for _, p := range s.Ports {
				if p.Port == 0 || p.Protocol == 0 {
					t.Errorf("bad port %+v", p)
				}
			}
		}
		for _, s := range objects.Slices {
			for e := range s.Endpoints.All() {
				if !e.Addr.IsValid() || e.Addr.Is6() != s.IPv6 {
					t.Errorf("bad endpoint %+v", e)
				}
			}
		}
		for _, p := range problems {
			if p.What == "" || p.File != "f" || strings.Contains(p.String(), "\n") {
				t.Errorf("bad problem %q", p)
			}
		}
	})
}
