package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/test/scenario"
)

// packetsFile is the file beside the manifests that says which packets are sent and who must answer.
const packetsFile = "shop.txtar"

// shop is what the folder says at one moment.
type shop struct {
	rows []row
	// manifests has the last good text of each file.
	manifests map[string]string
}

// row is one line of packets for one family and one port: a row of the printed table.
type row struct {
	group  string // the comment above the line
	text   string // the line
	family lb.Family
	index  int // which of the line's ports
	kind   string
	from   string
	shot   scenario.Shot
	want   scenario.Outcome
	// decides is the row of the table that kube-proxy should hold for this, as text; a change of it says that
	// this row is worth a look first.
	decides string
	// nobody: no Service has the address and port.
	nobody bool
}

// id says which rows of two moments are the same one.
func (r row) id() string { return fmt.Sprintf("%s %s %d", r.family, r.text, r.index) }

// copyShop copies the folder's files into a new folder, which the caller removes. The lab's name is in the
// folder's.
func copyShop(from, lab string) (dir string, err error) {
	files, err := os.ReadDir(from)
	if err != nil {
		return "", fmt.Errorf("read the shop: %w", err)
	}
	dir, err = os.MkdirTemp("", copyPrefix+lab+"-")
	if err != nil {
		return "", fmt.Errorf("make a folder for a copy of the shop: %w", err)
	}
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(from, f.Name()))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, f.Name()), data, 0o644)
		}
		if err != nil {
			os.RemoveAll(dir)
			return "", fmt.Errorf("copy the shop: %w", err)
		}
	}
	return dir, nil
}

const copyPrefix = "kube-proxy-shop-"

// removeStaleCopies removes what killed runs left, so only who holds the lab's name may call it; keep is the
// copy in use.
func removeStaleCopies(lab, keep string) error {
	// The random part of the names has no dash: the copies of lab "a-b" are not those of "a".
	copies, err := filepath.Glob(filepath.Join(os.TempDir(), copyPrefix+lab+"-[0-9]*"))
	for _, dir := range copies {
		if dir != keep && !strings.Contains(strings.TrimPrefix(filepath.Base(dir), copyPrefix+lab+"-"), "-") {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}
	if err != nil {
		return fmt.Errorf("remove what an earlier run left: %w", err)
	}
	return nil
}

// loadShop reads the manifests and the packets of a folder, and finds out what each line of packets means. A
// Service that is gone has the addresses that it had before; one that never was is an error.
func loadShop(dir string, before *shop) (*shop, error) {
	packets, err := os.ReadFile(filepath.Join(dir, packetsFile))
	if err != nil {
		return nil, fmt.Errorf("read the packets: %w", err)
	}
	manifests, err := readManifests(dir, before)
	if err != nil {
		return nil, err
	}
	sc, err := scenario.Parse(packetsFile, packets, join(manifests))
	if err != nil {
		return nil, err
	}
	if n := len(sc.States); n > 1 {
		return nil, fmt.Errorf("%s: has %d steps; want packets alone", packetsFile, n-1)
	}
	l := loader{before: before, groups: captions(packets), shop: shop{manifests: manifests}}
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		replay := sc.Replay(fam)
		step, _, err := replay.Next()
		if err != nil {
			return nil, err
		}
		l.views = append(l.views, view{fam, replay, step.Table})
	}
	for _, p := range sc.States[0].Packets {
		if err := l.line(p); err != nil {
			return nil, fmt.Errorf("%s:%d: %s: %w", packetsFile, p.Line, p.Text, err)
		}
	}
	if len(l.shop.rows) == 0 {
		return nil, fmt.Errorf("%s: no packets", packetsFile)
	}
	return &l.shop, nil
}

// inMode returns the shop as it must be in a mode. Where a packet to an address or port of nobody passes untouched (SV-62,
// SV-63), the sink gets it. Where connections end at the proxy, backends see the node.
func (s *shop) inMode(m mode.Mode) *shop {
	if m.Terminates {
		for i := range s.rows {
			want := &s.rows[i].want
			want.Backends = slices.Clone(want.Backends)
			for j := range want.Backends {
				want.Backends[j].From = scenario.Origin{Host: netlab.Node1}
			}
		}
	}
	if !m.PassesUnknown {
		return s
	}
	for i := range s.rows {
		if r := &s.rows[i]; r.nobody {
			r.want = scenario.Outcome{Verdict: scenario.Answered, Backends: []scenario.Backend{{Host: netlab.Sink}}}
		}
	}
	return s
}

// loader makes rows of lines.
type loader struct {
	before *shop
	groups func(line int) string
	views  []view
	shop   shop
}

// view is what the manifests mean in one family.
type view struct {
	family lb.Family
	replay *scenario.Replay
	table  *lb.Table
}

// line adds the rows of one line: one for each family and port.
func (l *loader) line(p scenario.Packet) error {
	if p.Verb != scenario.Send || p.To.ICMP {
		return errors.New("this table has room for lines SOURCE -> ADDRESS:PORT : OUTCOME alone")
	}
	if slices.ContainsFunc(p.Want.Backends, func(b scenario.Backend) bool { return b.From.Addr.Of != "" }) {
		return errors.New("want the source as a host or an address")
	}
	for _, v := range l.views {
		shots, err := v.replay.Resolve(p, hostAddr)
		if err != nil {
			if old := l.before.rowsOf(p.Text, v.family); len(old) > 0 {
				l.shop.rows = append(l.shop.rows, old...)
				continue
			}
			return err
		}
		for i, shot := range shots {
			l.shop.rows = append(l.shop.rows, row{group: l.groups(p.Line), text: p.Text, family: v.family, index: i,
				kind: kindOf(p.To), from: p.From, shot: shot, want: p.Want, decides: decides(v.table, shot.Key),
				nobody: v.table.Get(shot.Key) == nil})
		}
	}
	return nil
}

// rowsOf returns the rows that a line had, as rows that nothing decides.
func (s *shop) rowsOf(text string, family lb.Family) []row {
	if s == nil {
		return nil
	}
	var out []row
	for _, r := range s.rows {
		if r.text == text && r.family == family {
			r.decides = ""
			out = append(out, r)
		}
	}
	return out
}

// readManifests returns the text of each file that the proxy reads. Of a file that is malformed it is the last
// good one, as with the proxy; where there was none, that is an error.
func readManifests(dir string, before *shop) (map[string]string, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	texts := map[string]string{}
	for _, f := range files {
		if !isManifest(f.Name()) {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return nil, fmt.Errorf("read manifests: %w", err)
		}
		text := string(data)
		if _, _, err := (scenario.Change{YAML: text}).Events(); err != nil {
			if before == nil || before.manifests[f.Name()] == "" {
				return nil, fmt.Errorf("read manifests: %s: %w", f.Name(), err)
			}
			text = before.manifests[f.Name()]
		}
		texts[f.Name()] = text
	}
	return texts, nil
}

// isManifest reports whether the proxy reads a file of that name.
func isManifest(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) && !strings.HasPrefix(name, ".")
}

// join makes one text of manifests, in the order of their names.
func join(manifests map[string]string) string {
	var all strings.Builder
	for _, name := range slices.Sorted(maps.Keys(manifests)) {
		fmt.Fprintf(&all, "\n---\n%s", manifests[name])
	}
	return all.String()
}

// captions returns a function that finds the comment above a line.
func captions(packets []byte) func(line int) string {
	lines := bytes.Split(packets, []byte("\n"))
	return func(line int) string {
		for i := min(line, len(lines)) - 1; i >= 0; i-- {
			if text, ok := bytes.CutPrefix(lines[i], []byte("# ")); ok {
				return string(text)
			}
		}
		return ""
	}
}

// decides returns what the table says about a key: its row, and what holds for the whole node.
func decides(t *lb.Table, k lb.Key) string {
	return fmt.Sprintf("%+v\n%s", t.Node, t.Get(k))
}

var kinds = map[scenario.AddrKind]string{
	scenario.ClusterAddr: "ClusterIP", scenario.ExternalAddr: "external IP", scenario.LoadBalancerAddr: "LoadBalancer",
	scenario.NodePortAddr: "NodePort",
}

func kindOf(t scenario.Target) string {
	if t.Addr.Of == "" {
		return "nobody's"
	}
	return kinds[t.Addr.Kind]
}

func hostAddr(host string, six bool) netip.Addr {
	h, _ := netlab.HostByName(host)
	return h.Addr(six)
}
