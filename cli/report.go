package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"kube-proxy/cli/report"
	"kube-proxy/debug/api"
	"kube-proxy/debug/inspect"
	"kube-proxy/internal/plural"
	"kube-proxy/lb"
)

// reportQuery is "kube-proxy report".
func reportQuery() queryCommand {
	var file string
	var names bool
	return queryCommand{
		name: "report", args: "[--file FILE]", single: true,
		short: "write a file for a bug report, without names and addresses",
		about: "Writes one archive with the answers of the other commands on this node: status, configuration, " +
			"Services, frontends, differences, recent changes, and the details of Services with problems. Names of " +
			"objects and nodes, and addresses, are replaced by pseudonyms. Look into the file before you publish it.",
		more: "\n      --file string   archive to write, default kube-proxy-report-TIME.tar.gz; it must not exist\n" +
			"      --names         keep names and addresses\n",
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&file, "file", "", "")
			cmd.Flags().BoolVar(&names, "names", false, "")
		},
		ask: func(ctx context.Context, q *queries, _ []string) error {
			now := time.Now().UTC()
			folder := "kube-proxy-report-" + now.Format("20060102-150405")
			return q.report(ctx, cmp.Or(file, folder+".tar.gz"), folder, names, now)
		},
	}
}

// reportQueries are the queries of a report, each with its file.
var reportQueries = []string{"status", "configuration", "attention", "states", "diff", "events", "table"}

const (
	// maxReported is the number of Services with problems whose details are in a report.
	maxReported = 20
	// reportBytes limits the answers of a report, in bytes: all of them are in memory at once, and
	// the node may be hostile.
	reportBytes = api.MaxAnswer
)

// reportAnswer is the answer to one query of a report, or the reason why it is missing.
type reportAnswer struct {
	file string
	raw  json.RawMessage
	err  error
}

// report writes a report. A query without an answer is named in its README; only a proxy that
// answers none is an error.
func (q *queries) report(ctx context.Context, file, folder string, names bool, now time.Time) error {
	answers, err := q.reportAnswers(ctx, reportBytes)
	if err != nil {
		return err
	}
	files, err := reportFiles(answers, names, now)
	if err != nil {
		return err
	}
	if err := report.Write(file, folder, now, files); err != nil {
		return err
	}
	missing := 0
	for _, a := range answers {
		if a.err != nil {
			missing++
		}
	}
	fmt.Fprintf(q.out, "wrote %s: %s, %d missing; read it before you publish it\n", file,
		plural.Count(len(answers)-missing, "answer", "answers"), missing)
	return nil
}

// reportAnswers returns the answers of a report, which have up to most bytes together.
func (q *queries) reportAnswers(ctx context.Context, most int) (all []reportAnswer, err error) {
	get := func(file, query string, params url.Values) (json.RawMessage, error) {
		a := reportAnswer{file: file}
		a.err = q.client.Get(ctx, query, params, &a.raw)
		if most -= len(a.raw); most < 0 {
			most += len(a.raw)
			a.raw, a.err = nil, fmt.Errorf("left out: a report has up to %d MiB", reportBytes>>20)
		}
		all = append(all, a)
		return a.raw, a.err
	}
	var states json.RawMessage
	for _, query := range reportQueries {
		raw, err := get(query+".json", query, nil)
		if query == "status" && errors.Is(err, api.ErrNotAsked) || ctx.Err() != nil {
			return nil, err
		}
		if query == "states" {
			states = raw
		}
	}
	for i, name := range troubled(states) {
		_, err := get(fmt.Sprintf("service-%02d.json", i+1), "service", url.Values{"name": {name}})
		if errors.Is(err, api.ErrNotAsked) {
			break // a node that does not answer makes the user wait for each query
		}
	}
	return all, nil
}

// troubled returns the first Services with problems.
func troubled(states json.RawMessage) (names []string) {
	var list struct {
		Services []inspect.Service `json:"services"`
	}
	if json.Unmarshal(states, &list) != nil {
		return nil // there is no such answer
	}
	for _, s := range list.Services {
		if s.Severity.Bad() && len(names) < maxReported {
			names = append(names, s.Namespace+"/"+s.Name)
		}
	}
	return names
}

// reportFiles returns the files of a report, redacted unless names is set.
func reportFiles(answers []reportAnswer, names bool, now time.Time) ([]report.File, error) {
	r := report.NewRedactor()
	for _, a := range answers {
		if a.err == nil {
			if err := r.Learn(a.raw); err != nil {
				return nil, fmt.Errorf("redact %s: %w", a.file, err)
			}
		}
	}
	var files []report.File
	readme := reportReadme(names, now)
	for _, a := range answers {
		if a.err != nil {
			text := a.err.Error()
			if !names {
				text = r.Text(text)
			}
			readme += fmt.Sprintf("  %-20s missing: %s\n", a.file, lb.Printable(text))
			continue
		}
		text, err := []byte(a.raw), error(nil)
		if !names {
			text, err = r.JSON(a.raw)
		}
		if err != nil {
			return nil, fmt.Errorf("redact %s: %w", a.file, err)
		}
		readme += "  " + a.file + "\n"
		files = append(files, report.File{Name: a.file, Text: text})
	}
	return slices.Insert(files, 0, report.File{Name: "README.txt", Text: []byte(readme)}), nil
}

func reportReadme(names bool, now time.Time) string {
	how := "Names of namespaces, Services, Pods, nodes, zones and URL hosts, and addresses, are pseudonyms, " +
		"the same\nin all files. Names of Service ports, of programs and of files are as they are.\n"
	if names {
		how = "Names and addresses are as they are in the cluster (--names).\n"
	}
	return "kube-proxy report of " + now.Format(time.RFC3339) + "\n\n" + how +
		"Not in this file: log lines, metrics, the rules of other programs.\n\n" +
		"Answers:\n"
}
