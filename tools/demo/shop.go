package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/test/scenario"
)

// packetsFile is the file beside the manifests with the packets to send and the expected answers.
const packetsFile = "shop.txtar"

// shop is the folder's content at one moment.
type shop struct {
	rows []row
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
	// unknown: no Service has the address and port.
	unknown bool
}

// id identifies the same row at two moments.
func (r row) id() string { return fmt.Sprintf("%s %s %d", r.family, r.text, r.index) }

// copyShop makes a folder with the files of another one, in place of the remains of a killed run.
func copyShop(from, to string) error {
	err := os.RemoveAll(to)
	if err == nil {
		err = os.CopyFS(to, os.DirFS(from))
	}
	if err != nil {
		return fmt.Errorf("copy the shop: %w", err)
	}
	return nil
}

// loadShop reads the manifests and the packets of a folder, and finds the meaning of each line of
// packets.
func loadShop(dir string) (*shop, error) {
	packets, err := os.ReadFile(filepath.Join(dir, packetsFile))
	if err != nil {
		return nil, fmt.Errorf("read the packets: %w", err)
	}
	manifests, err := readManifests(dir)
	if err != nil {
		return nil, err
	}
	sc, err := scenario.Parse(packetsFile, packets, manifests)
	if err != nil {
		return nil, err
	}
	if n := len(sc.States); n > 1 {
		return nil, fmt.Errorf("%s: has %d steps; want packets alone", packetsFile, n-1)
	}
	var views []view
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		replay := sc.Replay(fam)
		step, _, err := replay.Next()
		if err != nil {
			return nil, err
		}
		views = append(views, view{fam, replay, step.Table})
	}
	s, groups := &shop{}, captions(packets)
	for _, p := range sc.States[0].Packets {
		rows, err := rowsOf(p, views, groups(p.Line))
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %s: %w", packetsFile, p.Line, p.Text, err)
		}
		s.rows = append(s.rows, rows...)
	}
	if len(s.rows) == 0 {
		return nil, fmt.Errorf("%s: no packets", packetsFile)
	}
	return s, nil
}

// inMode returns the shop as it must be in a mode. Where a packet to an unknown address or port
// passes untouched (SV-62, SV-63), the sink gets it. Where connections end at the proxy, backends
// see the node.
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
		if r := &s.rows[i]; r.unknown {
			r.want = scenario.Outcome{Verdict: scenario.Answered, Backends: []scenario.Backend{{Host: netlab.Sink}}}
		}
	}
	return s
}

// view is the meaning of the manifests in one family.
type view struct {
	family lb.Family
	replay *scenario.Replay
	table  *lb.Table
}

// rowsOf returns the rows of one line: one for each family and port.
func rowsOf(p scenario.Packet, views []view, group string) (rows []row, err error) {
	if p.Verb != scenario.Send || p.To.ICMP {
		return nil, errors.New("this table has room for lines SOURCE -> ADDRESS:PORT : OUTCOME alone")
	}
	if slices.ContainsFunc(p.Want.Backends, func(b scenario.Backend) bool { return b.From.Addr.Of != "" }) {
		return nil, errors.New("want the source as a host or an address")
	}
	for _, v := range views {
		shots, err := v.replay.Resolve(p, netlab.Addr)
		if err != nil {
			return nil, err
		}
		for i, shot := range shots {
			rows = append(rows, row{group: group, text: p.Text, family: v.family, index: i, kind: kindOf(p.To),
				from: p.From, shot: shot, want: p.Want, unknown: v.table.Get(shot.Key) == nil})
		}
	}
	return rows, nil
}

// readManifests returns all that the proxy reads as one text, in the order of the files' names.
func readManifests(dir string) (string, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("read manifests: %w", err)
	}
	var all strings.Builder
	for _, f := range files {
		if !isManifest(f.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err == nil {
			_, _, err = (scenario.Change{YAML: string(text)}).Events()
		}
		if err != nil {
			return "", fmt.Errorf("read manifests: %s: %w", f.Name(), err)
		}
		fmt.Fprintf(&all, "\n---\n%s", text)
	}
	return all.String(), nil
}

// isManifest reports whether the proxy reads a file of that name.
func isManifest(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) && !strings.HasPrefix(name, ".")
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

var kinds = map[scenario.AddrKind]string{
	scenario.ClusterAddr: "ClusterIP", scenario.ExternalAddr: "external IP", scenario.LoadBalancerAddr: "LoadBalancer",
	scenario.NodePortAddr: "NodePort",
}

func kindOf(t scenario.Target) string {
	if t.Addr.Of == "" {
		return "unknown"
	}
	return kinds[t.Addr.Kind]
}
