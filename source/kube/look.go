package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

	authorization "k8s.io/api/authorization/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"kube-proxy/source/convert"
)

// Requests are all that this package asks of an API server, as "verb group/resource".
var Requests = []string{
	"list /services", "watch /services", "list discovery.k8s.io/endpointslices",
	"watch discovery.k8s.io/endpointslices",
	"get /nodes", "list /nodes", "watch /nodes", "list networking.k8s.io/servicecidrs",
	"watch networking.k8s.io/servicecidrs",
	"create events.k8s.io/events", "patch events.k8s.io/events",
}

// Looked is what a look at an API server found. Errors say why the rest of theirs is not known.
type Looked struct {
	// Host is the server's address; "" if the configuration names none.
	Host string
	// Version is what the server calls itself. If that cannot be had, nothing else was asked.
	Version string
	Err     error
	// Ahead is by how much the server's clock is ahead, to a second.
	Ahead time.Duration
	// Node is whether there is a Node of that name, and its internal addresses.
	Node    bool
	Addrs   []netip.Addr
	NodeErr error
	// Denied are those of Requests that the credentials may not make.
	Denied    []string
	DeniedErr error
	// ServiceCIDRs are the networks of cluster IPs, none if the server has no such objects.
	ServiceCIDRs []netip.Prefix
	CIDRsErr     error
}

// Look asks an API server, once, for what a proxy needs of it. It changes nothing there: a
// SelfSubjectAccessReview is answered, and not kept.
func Look(ctx context.Context, cfg Config) Looked {
	ctx = klog.NewContext(ctx, clientLog(cfg.Log))
	var l Looked
	config, err := cfg.RESTConfig()
	if err != nil {
		l.Err = err
		return l
	}
	l.Host = config.Host
	clients, err := Clients(config, core.SchemeGroupVersion, networking.SchemeGroupVersion,
		authorization.SchemeGroupVersion)
	if err != nil {
		l.Err = err
		return l
	}
	l.Version, l.Ahead, l.Err = version(ctx, config, clients[0].(*rest.RESTClient).Client)
	if l.Err != nil {
		return l
	}
	l.node(ctx, clients[0], cfg.NodeName)
	l.serviceCIDRs(ctx, clients[1])
	l.rights(ctx, clients[2])
	return l
}

// maxAnswer bounds an answer of /version.
const maxAnswer = 64 << 10

// version asks for the server's version, and compares its clock.
func version(ctx context.Context, config *rest.Config, client *http.Client) (string, time.Duration, error) {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return "", 0, fmt.Errorf("kube: the address %q: %w", config.Host, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("version").String(), nil)
	if err != nil {
		return "", 0, fmt.Errorf("kube: %w", err)
	}
	began := time.Now()
	answer, err := client.Do(request)
	if err != nil {
		return "", 0, fmt.Errorf("kube: %w", err)
	}
	defer answer.Body.Close()
	var is struct{ GitVersion string }
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status)
	}
	if err == nil {
		err = json.Unmarshal(body, &is)
	}
	if err != nil {
		return "", 0, fmt.Errorf("kube: %s: %w", request.URL, err)
	}
	at, err := http.ParseTime(answer.Header.Get("Date"))
	if err != nil {
		return is.GitVersion, 0, nil // no server of Kubernetes is without
	}
	now := began.Add(time.Since(began) / 2)
	return is.GitVersion, at.Sub(now).Round(time.Second), nil
}

func (l *Looked) node(ctx context.Context, client rest.Interface, name string) {
	var node core.Node
	err := client.Get().Resource("nodes").Name(name).MaxRetries(0).Do(ctx).Into(&node)
	if apierrors.IsNotFound(err) {
		return
	}
	if err != nil {
		l.NodeErr = fmt.Errorf("kube: read the Node %s: %w", name, err)
		return
	}
	l.Node = true
	for _, s := range node.Status.Addresses {
		if a, ok := convert.ParseAddr(s.Address); ok && s.Type == core.NodeInternalIP {
			l.Addrs = append(l.Addrs, a)
		}
	}
}

func (l *Looked) serviceCIDRs(ctx context.Context, client rest.Interface) {
	var all networking.ServiceCIDRList
	err := client.Get().Resource("servicecidrs").MaxRetries(0).Do(ctx).Into(&all)
	if apierrors.IsNotFound(err) {
		return // before 1.33
	}
	if err != nil {
		l.CIDRsErr = fmt.Errorf("kube: list ServiceCIDRs: %w", err)
		return
	}
	for i := range all.Items {
		network, _ := convert.ServiceCIDR(&all.Items[i])
		l.ServiceCIDRs = append(l.ServiceCIDRs, network.Prefixes...)
	}
}

func (l *Looked) rights(ctx context.Context, client rest.Interface) {
	for _, r := range Requests {
		verb, what, _ := strings.Cut(r, " ")
		group, resource, _ := strings.Cut(what, "/")
		review := &authorization.SelfSubjectAccessReview{Spec: authorization.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorization.ResourceAttributes{Verb: verb, Group: group, Resource: resource}}}
		var answer authorization.SelfSubjectAccessReview
		if err := client.Post().Resource("selfsubjectaccessreviews").MaxRetries(0).Body(review).Do(ctx).
			Into(&answer); err != nil {
			l.Denied, l.DeniedErr = nil, fmt.Errorf("kube: check the right to %s: %w", r, err)
			return
		}
		if !answer.Status.Allowed {
			l.Denied = append(l.Denied, verb+" "+resource)
		}
	}
}
