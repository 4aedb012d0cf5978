package planetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"

	"kube-proxy/lb"
)

// BreakTable returns a Config.Break that removes a rule, an element, or the contents of a chain or
// map from the tables of that name, with nft.
func BreakTable(table string) func(lb.Family, *rand.Rand) (string, error) {
	return func(f lb.Family, rnd *rand.Rand) (string, error) {
		family := nftFamily(f)
		listed, err := exec.Command("nft", "-j", "list", "table", family, table).Output()
		if err != nil {
			return "", fmt.Errorf("nft -j list table %s %s: %w", family, table, err)
		}
		var all struct {
			Objects []map[string]map[string]any `json:"nftables"`
		}
		if err := json.Unmarshal(listed, &all); err != nil {
			return "", fmt.Errorf("what nft lists of table %s %s: %w", family, table, err)
		}
		var ways []any
		verb := func(verb, kind string, o map[string]any) {
			ways = append(ways, map[string]any{verb: map[string]any{kind: o}})
		}
		for _, o := range all.Objects {
			for kind, v := range o {
				what := map[string]any{"family": family, "table": table, "name": v["name"]}
				switch kind {
				case "rule":
					verb("delete", kind, map[string]any{"family": family, "table": table, "chain": v["chain"],
						"handle": v["handle"]})
				case "chain":
					verb("flush", kind, what)
				case "map", "set":
					elems, _ := v["elem"].([]any)
					for _, e := range elems {
						verb("delete", "element", map[string]any{"family": family, "table": table, "name": v["name"],
							"elem": []any{e}})
					}
				}
			}
		}
		if len(ways) == 0 {
			return "", fmt.Errorf("table %s %s has nothing to take away", family, table)
		}
		script, err := json.Marshal(map[string]any{"nftables": []any{ways[rnd.IntN(len(ways))]}})
		if err != nil {
			return "", err
		}
		nft := exec.Command("nft", "-j", "-f", "-")
		nft.Stdin = bytes.NewReader(script)
		if out, err := nft.CombinedOutput(); err != nil {
			return "", fmt.Errorf("nft %s: %w: %s", script, err, out)
		}
		return string(script), nil
	}
}

// BreakChains returns a Config.Break that removes one rule from iptables chains, with the programs
// iptables-save and iptables-restore whose prefix program returns for a family.
func BreakChains(program func(lb.Family) string) func(lb.Family, *rand.Rand) (string, error) {
	return func(f lb.Family, rnd *rand.Rand) (string, error) {
		saved, err := exec.Command(program(f) + "-save").Output()
		if err != nil {
			return "", fmt.Errorf("%s-save: %w", program(f), err)
		}
		var ways []string
		table := ""
		for line := range strings.Lines(string(saved)) {
			line = strings.TrimSpace(line)
			if name, ok := strings.CutPrefix(line, "*"); ok {
				table = name
			}
			if rule, ok := strings.CutPrefix(line, "-A "); ok && strings.Contains(rule, "KUBE-") {
				ways = append(ways, fmt.Sprintf("*%s\n-D %s\nCOMMIT\n", table, rule))
			}
		}
		if len(ways) == 0 {
			return "", fmt.Errorf("%s has no rule to take away", program(f))
		}
		way := ways[rnd.IntN(len(ways))]
		restore := exec.Command(program(f)+"-restore", "--noflush")
		restore.Stdin = strings.NewReader(way)
		if out, err := restore.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w: %s", way, err, out)
		}
		return way, nil
	}
}
