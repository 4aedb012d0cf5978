package ui

import (
	"fmt"
	"strings"

	"kube-proxy/debug/inspect"
)

// level says how much something needs the operator.
type level uint8

// The levels.
const (
	fine level = iota
	// note: not served as somebody may expect, by what the Service or another one asks for.
	note
	// alarm: something that is asked for is not in force.
	alarm
)

// String returns the word that pages have for it.
func (l level) String() string { return [...]string{"fine", "note", "alarm"}[l] }

// levelOf is how pages show a severity.
func levelOf(s inspect.Severity) level {
	switch s {
	case inspect.Error:
		return alarm
	case inspect.Warning:
		return note
	}
	return fine
}

// item is a Service as a row of the table.
type item struct {
	Name      string // "ns/name"
	Type      string
	Addresses string // the first ones with the ports, and how many more
	Policy    string // of traffic
	Rows      int
	Ready     int // endpoints
	All       int
	Here      int // ready ones on this node
	Level     level
	Says      string // what is to be said of it, "" if nothing is
}

// row is an item as pages get it, without names of fields: ten thousand are sent at once.
func (i *item) row() []any {
	return []any{i.Name, i.Type, i.Addresses, i.Policy, i.Rows, i.Ready, i.All, i.Here, i.Level, i.Says}
}

// shown is how many addresses, and ports, of a Service a row names.
const shown = 2

// itemOf makes a row of what is known of a Service.
func itemOf(s *inspect.Service) item {
	i := item{
		Name: s.Namespace + "/" + s.Name, Type: s.Type, Policy: policyOf(s), Rows: s.Rows,
		Ready: s.Endpoints.Ready, All: s.Endpoints.All, Here: s.Endpoints.Local, Level: levelOf(s.Severity),
	}
	if s.State != inspect.OK {
		i.Says = said(s)
	}
	var addresses, ports []string
	for _, a := range s.Addresses {
		addresses = append(addresses, a.Address.String())
	}
	for _, p := range s.Ports {
		ports = append(ports, fmt.Sprintf(":%d/%s", p.Port, p.Protocol))
	}
	i.Addresses = strings.Join(append(firsts(addresses), firsts(ports)...), " ")
	return i
}

// firsts are the first of a list, and how many more it has.
func firsts(list []string) []string {
	if len(list) <= shown {
		return list
	}
	return append(list[:shown:shown], fmt.Sprintf("+%d", len(list)-shown))
}

// policyOf is the traffic policy, for clients outside too where it is another and there may be such
// clients.
func policyOf(s *inspect.Service) string {
	if s.External == s.Internal || s.External == "" || s.Type != "NodePort" && s.Type != "LoadBalancer" {
		return s.Internal
	}
	return s.Internal + ", outside " + s.External
}

// said is what is to be said of a Service that is not simply served.
func said(s *inspect.Service) string {
	if full := s.Namespace + "/" + s.Name; s.Why != "" { // the row begins with the name
		return strings.NewReplacer(full+":", "", full+" ", "").Replace(s.Why)
	}
	return strings.ReplaceAll(string(s.State), "-", " ")
}

// head is what the line on top of each page says of all.
type head struct {
	Level level  `json:"level"`
	Text  string `json:"text"`
}

// headOf says in a line how the proxy stands: it is as bad as the worst finding.
func headOf(s inspect.Status) head {
	h := head{levelOf(s.Severity), plural(s.Services, "Service", "Services") + ", all rows in force"}
	var says []string
	for _, f := range s.Findings[:min(len(s.Findings), shownFindings)] {
		says = append(says, short(f.Text, 200))
	}
	if more := len(s.Findings) - len(says); more > 0 {
		says = append(says, fmt.Sprintf("and %d more", more))
	}
	if says != nil {
		h.Text = strings.Join(says, "; ")
	}
	return h
}

// shownFindings is how many findings the line on top of a page has.
const shownFindings = 3
