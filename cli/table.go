package cli

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"kube-proxy/debug/inspect"
	"kube-proxy/internal/fold"
	"kube-proxy/internal/nearest"
	"kube-proxy/lb"
)

// tableQuery is "kube-proxy table".
func tableQuery() queryCommand {
	return queryCommand{
		name: "table", args: "[FILTER]", most: 1, takes: oneService,
		short: "the frontends: each address and port of a Service, and its routes",
		about: "Prints the frontends of the desired table: each address and port of a Service, and what happens to " +
			"its packets, depending on their source. FILTER is an address, a CIDR, a namespace followed by a slash, " +
			"or part of a key, a Service or a kind.",
		more: "\n  kube-proxy table shop/\n  kube-proxy table 10.96.0.10\n  kube-proxy table nodeport\n",
		ask: func(ctx context.Context, q *queries, args []string) error {
			params := url.Values{}
			if len(args) > 0 {
				params.Set("filter", args[0])
			}
			_, err := get(ctx, q, "table", params, func(a *struct {
				Node      string
				Frontends []inspect.Frontend
			}) {
				q.head(a.Node)
				if len(a.Frontends) == 0 {
					fmt.Fprintln(q.errOut, "kube-proxy: no frontend matches"+likeFilter(ctx, q, params.Get("filter")))
				}
				tableText(q.out, a.Frontends, q.format == "wide")
			})
			return err
		},
	}
}

// likeFilter suggests the kind of frontends or the Service that a filter without results may have
// meant; "" if none is similar.
func likeFilter(ctx context.Context, q *queries, filter string) string {
	var all struct{ Services []string }
	_ = q.client.Get(ctx, "services", nil, &all) // without an answer only kinds are suggested
	for k := lb.ClusterIP; k <= lb.HealthCheck; k++ {
		all.Services = append(all.Services, k.String())
	}
	return nearest.DidYouMean(filter, slices.Values(all.Services), "")
}

// columns prints lines of cells below each other, each cell escaped. Unless wide, a line has at
// most [fold.Width] columns: its last cell continues below itself, or without room in the next
// line.
func columns(out io.Writer, lines [][]string, wide bool) {
	widths := map[int]int{}
	for _, cells := range lines {
		for n := range cells {
			cells[n] = lb.Printable(cells[n])
			widths[n] = max(widths[n], utf8.RuneCountInString(cells[n]))
		}
	}
	for _, cells := range lines {
		line, last := "", len(cells)-1
		for n, c := range cells[:last] {
			line += c + strings.Repeat(" ", widths[n]+2-utf8.RuneCountInString(c))
		}
		column := utf8.RuneCountInString(line)
		if room := fold.Width - column; !wide && room < minLastColumn && utf8.RuneCountInString(cells[last]) > room {
			io.WriteString(out, strings.TrimRight(line, " ")+"\n")
			column = len(line) - len(strings.TrimLeft(line, " ")) + 4
			line = strings.Repeat(" ", column)
		}
		if line += cells[last]; !wide {
			line = fold.Hang(line, fold.Width, column)
		}
		io.WriteString(out, strings.TrimRight(line, " ")+"\n")
	}
}

// minLastColumn is the least room for a cell that is folded.
const minLastColumn = 18

func tableText(out io.Writer, rows []inspect.Frontend, wide bool) {
	lines := [][]string{{"KEY", "FAMILY", "SERVICE", "BACKENDS", "ROUTES"}}
	if wide {
		lines = [][]string{{"KEY", "FAMILY", "SERVICE", "KIND", "BACKENDS", "ROUTES", "SETS", "AFFINITY", "SOURCES"}}
	}
	for _, r := range rows {
		line := []string{r.Key, r.Family, r.Service, backendsOf(r), routesOf(r)}
		if wide {
			line = []string{r.Key, r.Family, r.Service, r.Kind, backendsOf(r), routesOf(r), setsOf(r),
				affinityText(r.AffinitySeconds), orDash(lb.JoinPrefixes(r.SourceRanges, ","))}
		}
		lines = append(lines, line)
	}
	if len(rows) > 0 {
		columns(out, lines, wide)
	}
}

func affinityText(seconds int) string {
	if seconds == 0 {
		return "-"
	}
	return strconv.Itoa(seconds) + "s"
}

// backendsOf returns the number of backends of a frontend, in each set.
func backendsOf(r inspect.Frontend) string {
	if r.LocalEndpoints != nil {
		return fmt.Sprintf("%d here", *r.LocalEndpoints)
	}
	var all []string
	seen := map[string]bool{}
	for _, route := range r.Routes {
		if route.Set != "" && !seen[route.Set] {
			seen[route.Set] = true
			all = append(all, strconv.Itoa(route.Backends))
		}
	}
	return orDash(strings.Join(all, "/"))
}

// routesOf describes the action of a frontend for each source; routes with the same action are
// merged.
func routesOf(r inspect.Frontend) string {
	var all []string
	for _, route := range r.Routes {
		does := route.Do
		if route.Masquerade {
			does += "+masquerade"
		}
		if strings.HasSuffix(route.Set, "/local") {
			does += " (local)"
		}
		if len(r.Routes) > 1 {
			does = route.From + ": " + does
		}
		all = append(all, does)
	}
	if r.State != "in force" {
		return strings.ToUpper(r.State) + ": " + r.Why
	}
	return strings.Join(all, ", ")
}

func setsOf(r inspect.Frontend) string {
	var all []string
	for _, route := range r.Routes {
		if route.Set != "" && (len(all) == 0 || all[len(all)-1] != route.Set) {
			all = append(all, route.Set)
		}
	}
	return orDash(strings.Join(all, ","))
}
