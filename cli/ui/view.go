package ui

import (
	"fmt"
	"strings"

	"kube-proxy/debug/inspect"
)

// level is how urgently something needs the operator.
type level uint8

// The levels.
const (
	fine level = iota
	// note: not served as users may expect, by the configuration of this or another Service.
	note
	// alarm: the kernel lacks a part of the desired state.
	alarm
)

// String returns the word that pages use.
func (l level) String() string { return [...]string{"fine", "note", "alarm"}[l] }

// levelOf returns the level for a severity.
func levelOf(s inspect.Severity) level {
	switch s {
	case inspect.Error:
		return alarm
	case inspect.Warning:
		return note
	}
	return fine
}

// item is the table row of a Service.
type item struct {
	Name      string // "ns/name"
	Type      string
	Addresses string // the first ones with ports, and the number of others
	Policy    string // of traffic
	Frontends int
	Ready     int // endpoints
	All       int
	Here      int // ready endpoints on this node
	Level     level
	Says      string // remark, "" for none
}

// row is an item as pages get it, without field names: a response may have ten thousand.
func (i *item) row() []any {
	return []any{i.Name, i.Type, i.Addresses, i.Policy, i.Frontends, i.Ready, i.All, i.Here, i.Level, i.Says}
}

// shown is the number of addresses, and of ports, in a Service's table row.
const shown = 2

// itemOf makes the table row of a Service.
func itemOf(s *inspect.Service) item {
	i := item{
		Name: s.Namespace + "/" + s.Name, Type: s.Type, Policy: policyOf(s), Frontends: s.Frontends,
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

// firsts returns the first entries of a list, and the number of others.
func firsts(list []string) []string {
	if len(list) <= shown {
		return list
	}
	return append(list[:shown:shown], fmt.Sprintf("+%d", len(list)-shown))
}

// policyOf returns the internal traffic policy, and the external one if it differs and the type of
// the Service has outside clients.
func policyOf(s *inspect.Service) string {
	if s.External == s.Internal || s.External == "" || s.Type != "NodePort" && s.Type != "LoadBalancer" {
		return s.Internal
	}
	return s.Internal + ", outside " + s.External
}

// said returns the remark about a Service that is not simply served.
func said(s *inspect.Service) string {
	if full := s.Namespace + "/" + s.Name; s.Why != "" { // the row begins with the name
		return strings.NewReplacer(full+":", "", full+" ", "").Replace(s.Why)
	}
	return strings.ReplaceAll(string(s.State), "-", " ")
}

// head is the status line on top of each page.
type head struct {
	Level level  `json:"level"`
	Text  string `json:"text"`
}

// headOf returns the status of the proxy in one line, with the level of the worst finding.
func headOf(s inspect.Status) head {
	h := head{levelOf(s.Severity), plural(s.Services, "Service", "Services") + ", all frontends in force"}
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

// shownFindings is the number of findings in the status line.
const shownFindings = 3
