package monitoring

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	alertsFile    = "../../charts/alerts/kube-proxy.yaml"
	dashboardFile = "../../charts/dashboards/kube-proxy.json"
	runbooksFile  = "../../docs/runbooks.md"
	metricsFile   = "../../docs/metrics.md"
)

// alert is one rule of the file.
type alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type ruleFile struct {
	Groups []struct {
		Name  string  `json:"name"`
		Rules []alert `json:"rules"`
	} `json:"groups"`
}

func readAlerts(t *testing.T) (f ruleFile, all []alert) {
	t.Helper()
	text, err := os.ReadFile(alertsFile)
	must(t, err)
	must(t, yaml.UnmarshalStrict(text, &f))
	for _, g := range f.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) < 15 {
		t.Fatalf("%s has %d alerts", alertsFile, len(all))
	}
	return f, all
}

// dashboard is the used part of Grafana's model of a dashboard, schema version 39. Decoding is
// strict: a misspelled field, which Grafana would silently ignore, is an error here.
type dashboard struct {
	Title         string                    `json:"title"`
	UID           string                    `json:"uid"`
	Description   string                    `json:"description"`
	SchemaVersion int                       `json:"schemaVersion"`
	Version       int                       `json:"version"`
	Editable      bool                      `json:"editable"`
	GraphTooltip  int                       `json:"graphTooltip"`
	Tags          []string                  `json:"tags"`
	Time          struct{ From, To string } `json:"time"`
	Refresh       string                    `json:"refresh"`
	Timezone      string                    `json:"timezone"`
	Links         []any                     `json:"links"`
	Annotations   struct {
		List []annotation `json:"list"`
	} `json:"annotations"`
	Templating struct {
		List []variable `json:"list"`
	} `json:"templating"`
	Panels []panel `json:"panels"`
}

type source struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

type variable struct {
	Name       string  `json:"name"`
	Type       string  `json:"type"`
	Label      string  `json:"label"`
	Datasource *source `json:"datasource,omitempty"`
	Query      any     `json:"query"` // a string, or an object of the kind of data source
	Definition string  `json:"definition,omitempty"`
	Refresh    int     `json:"refresh"`
	Sort       int     `json:"sort,omitempty"`
	Multi      bool    `json:"multi,omitempty"`
	IncludeAll bool    `json:"includeAll,omitempty"`
	Hide       int     `json:"hide"`
	Options    []any   `json:"options"`
	Current    any     `json:"current"`
	AllValue   string  `json:"allValue,omitempty"`
}

// annotation is a mark on every panel, where its query has a value.
type annotation struct {
	Name        string  `json:"name"`
	Enable      bool    `json:"enable"`
	Hide        bool    `json:"hide"`
	IconColor   string  `json:"iconColor"`
	Datasource  *source `json:"datasource"`
	Expr        string  `json:"expr"`
	Step        string  `json:"step"`
	TitleFormat string  `json:"titleFormat"`
	TextFormat  string  `json:"textFormat"`
}

type panel struct {
	ID          int      `json:"id"`
	Type        string   `json:"type"`
	Title       string   `json:"title"`
	Description string   `json:"description,omitempty"`
	Collapsed   bool     `json:"collapsed,omitempty"`
	Panels      []panel  `json:"panels,omitempty"`
	Datasource  *source  `json:"datasource,omitempty"`
	GridPos     gridPos  `json:"gridPos"`
	FieldConfig any      `json:"fieldConfig,omitempty"`
	Options     any      `json:"options,omitempty"`
	Targets     []target `json:"targets,omitempty"`
}

type gridPos struct{ H, W, X, Y int }

type target struct {
	RefID        string  `json:"refId"`
	Datasource   *source `json:"datasource"`
	Expr         string  `json:"expr"`
	LegendFormat string  `json:"legendFormat"`
	Instant      bool    `json:"instant,omitempty"`
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	text, err := os.ReadFile(dashboardFile)
	must(t, err)
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.DisallowUnknownFields()
	must(t, decoder.Decode(&d))
	if n := len(d.all()); n < 20 {
		t.Fatalf("%s has %d panels", dashboardFile, n)
	}
	return d
}

// all returns the panels, each row before those that are folded in it.
func (d dashboard) all() (all []panel) {
	for _, p := range d.Panels {
		all = append(append(all, p), p.Panels...)
	}
	return all
}

// firstScreen is how many lines of the grid, of 38 pixels each with their gaps, a screen of 900
// pixels shows.
const firstScreen = 22

// unfolded reports panels that are neither on the first screen nor folded.
func (d dashboard) unfolded(t *testing.T) {
	for _, p := range d.Panels {
		if p.GridPos.Y+p.GridPos.H > firstScreen && !p.Collapsed {
			t.Errorf("panel %q ends at line %d: it is below the first screen, and not folded", p.Title, p.GridPos.Y+
				p.GridPos.H)
		}
	}
}

// metricLabels returns the metrics of a proxy, with their labels and those that every scrape adds.
func metricLabels(t *testing.T) map[string][]string {
	t.Helper()
	labels := map[string][]string{
		"up":                            {},
		"process_start_time_seconds":    {},
		"process_open_fds":              {},
		"process_max_fds":               {},
		"process_resident_memory_bytes": {},
		"process_cpu_seconds_total":     {},
		"go_goroutines":                 {},
		"go_memstats_heap_inuse_bytes":  {},
		"rest_client_requests_total":    {"code", "host", "method"},
	}
	row := regexp.MustCompile("(?m)^- `(kubeproxy_[a-z0-9_]+)` \\(([a-z]+)([^)]*)\\): ")
	code := regexp.MustCompile("`([a-z_]+)`")
	page, err := os.ReadFile(metricsFile)
	must(t, err)
	n := 0
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		own := []string{}
		for _, l := range code.FindAllStringSubmatch(m[3], -1) {
			own = append(own, l[1])
		}
		if !strings.Contains(m[3], "*node*") {
			own = append(own, "ip_family")
		}
		n++
		if m[2] == "histogram" {
			labels[m[1]+"_bucket"], labels[m[1]+"_sum"], labels[m[1]+"_count"] = append(own, "le"), own, own
			continue
		}
		labels[m[1]] = own
	}
	if n < 50 {
		t.Fatalf("%d metrics on the page", n)
	}
	for name := range labels {
		labels[name] = append(slices.Clone(labels[name]), "job", "instance")
	}
	return labels
}

var (
	selector = regexp.MustCompile(`\b((?:kubeproxy|process|go|rest_client)_[a-z0-9_]+|up)\b(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`([a-zA-Z_]+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"`)
	grouping = regexp.MustCompile(`\b(?:by|without|on|group_left|group_right|ignoring)\s*\(([^)]*)\)`)
	legend   = regexp.MustCompile(`\{\{\s*\.?([A-Za-z_.]+)\s*\}\}`)
)

// faults returns the mistakes of a query against the existing metrics; names are the metrics in the
// query.
func faults(expr string, labels map[string][]string) (wrong, names []string) {
	have := map[string]bool{}
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		known, ok := labels[m[1]]
		if !ok {
			wrong = append(wrong, "no metric "+m[1])
			continue
		}
		names = append(names, m[1])
		for _, l := range known {
			have[l] = true
		}
		for _, x := range matcher.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(known, x[1]) {
				wrong = append(wrong, m[1]+" has no label "+x[1])
			}
		}
	}
	if len(names) == 0 {
		wrong = append(wrong, "it asks for nothing")
	}
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		for l := range strings.SplitSeq(m[1], ",") {
			l = strings.TrimSpace(l)
			if l != "" && !have[l] {
				wrong = append(wrong, "no metric of it has the label "+l)
			}
		}
	}
	return wrong, names
}

// A test must be able to fail.
func TestFaults(t *testing.T) {
	labels := metricLabels(t)
	for expr, want := range map[string]string{
		`kubeproxy_rows_failing > 0`:                           "",
		`sum by (ip_family) (kubeproxy_rows_failing{job="a"})`: "",
		`kubeproxy_rows_failed > 0`:                            "no metric kubeproxy_rows_failed",
		`kubeproxy_rows_failing{family="IPv4"}`: "kubeproxy_rows_failing has " +
			"no label family",
		`sum by (node) (kubeproxy_rows_failing)`:                           "no metric of it has the label node",
		`sum by (le) (kubeproxy_network_programming_duration_seconds_sum)`: "no metric of it has the label le",
		`vector(1)`: "it asks for nothing",
	} {
		if wrong, _ := faults(expr, labels); strings.Join(wrong, "; ") != want &&
			!(want != "" && slices.Contains(wrong, want)) {
			t.Errorf("%s: %q, want %q", expr, wrong, want)
		}
	}
}

// Every alert queries existing metrics, has a severity and a runbook; every runbook has an alert.
func TestAlerts(t *testing.T) {
	labels := metricLabels(t)
	page, err := os.ReadFile(runbooksFile)
	must(t, err)
	headings := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^## (KubeProxy\w+)$`).FindAllStringSubmatch(string(page), -1) {
		headings[m[1]] = true
	}
	_, alerts := readAlerts(t)
	seen := map[string]bool{}
	for _, a := range alerts {
		if seen[a.Alert] {
			t.Errorf("%s is there twice", a.Alert)
		}
		seen[a.Alert] = true
		wrong, names := faults(a.Expr, labels)
		for _, w := range wrong {
			t.Errorf("%s: %s", a.Alert, w)
		}
		if !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) || len(a.Labels) != 1 {
			t.Errorf("%s: labels %v", a.Alert, a.Labels)
		}
		if want := "docs/runbooks.md#" + strings.ToLower(a.Alert); a.Annotations["runbook"] != want ||
			!headings[a.Alert] {
			t.Errorf("%s: its runbook is %q, want %q with a heading there: %t", a.Alert, a.Annotations["runbook"], want,
				headings[a.Alert])
		}
		if a.Annotations["summary"] == "" || len(a.Annotations) != 2 {
			t.Errorf("%s: annotations %v", a.Alert, a.Annotations)
		}
		for _, m := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(a.Annotations["summary"], -1) {
			if !slices.ContainsFunc(names, func(n string) bool { return slices.Contains(labels[n], m[1]) }) {
				t.Errorf("%s: its summary has the label %s, which its metrics %v have not", a.Alert, m[1], names)
			}
		}
	}
	for h := range headings {
		if !seen[h] {
			t.Errorf("%s has a runbook for %s, which is no alert", runbooksFile, h)
		}
	}
}

// Grafana accepts the dashboard unchanged, and it queries existing metrics.
func TestDashboard(t *testing.T) {
	labels, d := metricLabels(t), readDashboard(t)
	for name := range labels {
		labels[name] = append(labels[name], "cluster") // that Prometheus adds where it scrapes several
	}
	d.unfolded(t)
	if d.Title == "" || d.UID != "kube-proxy" || d.SchemaVersion < 36 || d.Time.From == "" || d.Time.To == "" {
		t.Errorf("title %q, uid %q, schema %d, time %v", d.Title, d.UID, d.SchemaVersion, d.Time)
	}
	variables := map[string]bool{"__rate_interval": true}
	for _, v := range d.Templating.List {
		variables[v.Name] = true
		if v.Type == "query" {
			if wrong, _ := faults(v.Definition, labels); len(wrong) > 0 {
				t.Errorf("variable %s: %q", v.Name, wrong)
			}
		} else if v.Type != "datasource" || v.Query != "prometheus" {
			t.Errorf("variable %s of type %s", v.Name, v.Type)
		}
	}
	for _, a := range d.Annotations.List {
		if wrong, _ := faults(a.Expr, labels); len(wrong) > 0 || !a.Enable || !strings.Contains(a.Expr, `job=~"$job"`) {
			t.Errorf("annotation %s: %q, enabled: %t", a.Name, wrong, a.Enable)
		}
	}
	ids := map[int]string{}
	taken := map[[2]int]string{}
	queries := 0
	for _, p := range d.all() {
		if p.Type == "row" { // only the panels of a folded row are below it
			taken = map[[2]int]string{}
		}
		if ids[p.ID] != "" || p.ID == 0 || p.Title == "" {
			t.Errorf("panel %q has the id %d, as %q", p.Title, p.ID, ids[p.ID])
		}
		ids[p.ID] = p.Title
		g := p.GridPos
		if g.W < 1 || g.H < 1 || g.X < 0 || g.X+g.W > 24 {
			t.Errorf("panel %q stands at %+v", p.Title, g)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" {
					t.Fatalf("panel %q covers %q", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			if len(p.Targets) > 0 {
				t.Errorf("row %q has queries", p.Title)
			}
			continue
		}
		if !slices.Contains([]string{"stat", "timeseries"}, p.Type) || p.Description == "" || p.Datasource == nil ||
			*p.Datasource != (source{"prometheus", "${datasource}"}) || len(p.Targets) == 0 {
			t.Errorf("panel %q of type %q, data source %v, description %q, %d queries", p.Title, p.Type, p.Datasource,
				p.Description, len(p.Targets))
		}
		refs := map[string]bool{}
		for _, q := range p.Targets {
			queries++
			if refs[q.RefID] || q.RefID == "" {
				t.Errorf("panel %q: query %q twice", p.Title, q.RefID)
			}
			refs[q.RefID] = true
			wrong, names := faults(q.Expr, labels)
			for _, w := range wrong {
				t.Errorf("panel %q: %s: %s", p.Title, q.Expr, w)
			}
			for _, m := range regexp.MustCompile(`\$\{?(\w+)`).FindAllStringSubmatch(q.Expr, -1) {
				if !variables[m[1]] {
					t.Errorf("panel %q: %s: no variable %s", p.Title, q.Expr, m[1])
				}
			}
			for _, m := range selector.FindAllStringSubmatch(q.Expr, -1) {
				if !strings.Contains(m[2], `cluster=~"$cluster", job=~"$job"`) {
					t.Errorf("panel %q: %s is not of the job", p.Title, m[0])
				}
			}
			for _, m := range legend.FindAllStringSubmatch(q.LegendFormat, -1) {
				if !slices.ContainsFunc(names, func(n string) bool { return slices.Contains(labels[n], m[1]) }) {
					t.Errorf("panel %q: its legend has the label %s, which %v have not", p.Title, m[1], names)
				}
			}
		}
	}
	if queries < 40 {
		t.Errorf("%d queries", queries)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
