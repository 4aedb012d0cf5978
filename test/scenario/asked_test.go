package scenario

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/all"
	"kube-proxy/policy"
	"kube-proxy/test/golden"
	"kube-proxy/trace"
)

// TestAsked compares the answers for operators with test/testdata/asked: the output of "why" and
// "trace" for people.
func TestAsked(t *testing.T) {
	dir, err := Dir()
	if err != nil {
		t.Fatal(err)
	}
	lab, err := os.ReadFile(filepath.Join(dir, LabFile))
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "..", "asked", "*.txtar"))
	if err != nil || len(files) < 12 {
		t.Fatalf("%d files of questions: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			a := txtar.Parse(data)
			if len(a.Files) < 2 || a.Files[0].Name != "cluster.yaml" {
				t.Fatalf("want cluster.yaml first, and then questions")
			}
			c := apply(t, string(lab), string(a.Files[0].Data))
			for i, f := range a.Files[1:] {
				got := c.answer(f.Name)
				if *golden.Update {
					a.Files[1+i].Data = []byte(got)
				} else if got != string(f.Data) {
					t.Errorf(
						"%s: the answer differs (if that is meant: go test ./test/scenario -run Asked -update)\n%s",
						f.Name, golden.Diff(string(f.Data), got))
				}
			}
			if *golden.Update {
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// askedCluster is the cluster of a file, in IPv4.
type askedCluster struct {
	store    *cluster.Store
	settings policy.Settings
	table    *lb.Table
}

func apply(t *testing.T, texts ...string) *askedCluster {
	c := &askedCluster{cluster.NewStore(defaults().NodeName), defaults().For(lb.IPv4), &lb.Table{Family: lb.IPv4}}
	for _, text := range texts {
		events, problems, err := Change{YAML: text}.Events()
		if err != nil || len(problems) > 0 {
			t.Fatal(err, problems)
		}
		for _, ev := range events {
			c.store.Fold(ev)
		}
	}
	c.table.Node = policy.ResolveNode(c.store.Facts(), c.settings)
	for _, n := range c.store.Names() {
		v := c.store.View(n)
		c.table.Replace(lb.Owner{Name: n.String(), Created: v.Service.Created}, policy.Resolve(v, c.settings))
	}
	return c
}

// answer is a text for people.
func (c *askedCluster) answer(question string) string {
	verb, rest, _ := strings.Cut(question, " ")
	if verb == "why" {
		ns, name, _ := strings.Cut(rest, "/")
		return explained(policy.Explain(c.store.View(cluster.Name{Namespace: ns, Name: name}), c.settings))
	}
	rest, name, _ := strings.Cut(rest, " in ")
	m, _ := all.Modes().Find(name)
	src, dst, _ := strings.Cut(rest, " ")
	p, err := c.packet(src, dst)
	if err != nil {
		return err.Error() + "\n"
	}
	return trace.Ask(c.table, m.Trace(mode.Settings{Family: lb.IPv4}), p).Text(p)
}

func (c *askedCluster) packet(src, dst string) (p trace.Packet, err error) {
	from, to, err := trace.Parse(src, dst)
	if err != nil {
		return p, err
	}
	node := c.store.Facts().Node.Addrs[0]
	p.From = from.Addr
	if from.Node {
		p.From = netip.AddrPortFrom(node, 0)
	}
	for _, n := range c.store.Names() { // as inspect does it
		if n.Name == to.Service {
			to.Service = n.String()
		}
	}
	p.To, p.Proto, err = to.Find(c.table, node)
	if err != nil {
		return p, err
	}
	here := func(a netip.Addr) bool { return a == node || a.IsLoopback() }
	p.Host, p.Here = here(p.From.Addr()), here(p.To.Addr())
	return p, nil
}
