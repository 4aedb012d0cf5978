package kube

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	authorization "k8s.io/api/authorization/v1"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	events "k8s.io/api/events/v1"
	networking "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// newScheme knows all types that are read or sent.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{core.AddToScheme, discovery.AddToScheme, networking.AddToScheme,
		events.AddToScheme, authorization.AddToScheme} {
		utilruntime.Must(add(scheme)) // of constant types: this cannot fail
	}
	return scheme
}

// Clients makes a client for each version of the API; they share connections.
func Clients(config *rest.Config, versions ...schema.GroupVersion) ([]rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = negotiated{serializer.NewCodecFactory(newScheme()).WithoutConversion(),
		services(), endpointSlices()}
	if config.UserAgent == "" {
		config.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("kube: use the credentials for %s: %w", config.Host, err)
	}
	var out []rest.Interface
	for _, version := range versions {
		c := rest.CopyConfig(config)
		c.GroupVersion, c.APIPath = &version, "/apis"
		if version.Group == "" {
			c.APIPath = "/api"
		}
		client, err := rest.RESTClientForConfigAndClient(c, httpClient)
		if err != nil {
			return nil, fmt.Errorf("kube: make a client for %s of %s: %w", version, config.Host, err)
		}
		out = append(out, client)
	}
	return out, nil
}

// mediaTypes are the encodings that can be read and written, the better first.
var mediaTypes = []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON}

// content returns the media type of requests and those of answers that the server may choose from
// (PR-11). JSON is always among these, because servers of extended APIs know no other. ignored says
// which types cannot be had.
func (c Config) content() (send, accept string, ignored []string) {
	send = cmp.Or(c.ContentType, runtime.ContentTypeProtobuf)
	if !slices.Contains(mediaTypes, mediaType(send)) {
		ignored, send = append(ignored, send), runtime.ContentTypeProtobuf
	}
	types := cmp.Or(c.AcceptContentTypes, send)
	var accepts []string
	for typ := range strings.SplitSeq(types, ",") {
		switch typ = strings.TrimSpace(typ); {
		case typ == "":
		case slices.Contains(mediaTypes, mediaType(typ)):
			accepts = append(accepts, typ)
		default:
			ignored = append(ignored, typ)
		}
	}
	if len(accepts) == 0 {
		accepts = []string{runtime.ContentTypeProtobuf}
	}
	if !slices.ContainsFunc(accepts, func(typ string) bool { return mediaType(typ) == runtime.ContentTypeJSON }) {
		accepts = append(accepts, runtime.ContentTypeJSON)
	}
	return send, strings.Join(accepts, ","), ignored
}

// mediaType is a media type without parameters such as ";q=0.5".
func mediaType(s string) string {
	s, _, _ = strings.Cut(s, ";")
	return strings.TrimSpace(s)
}

// NodeAnnotation asks the API server, once, for an annotation of the Node cfg.NodeName; "" means
// that the Node has none of that name. The Node may be read by system:node-proxier. ctx bounds the
// time.
func NodeAnnotation(ctx context.Context, cfg Config, name string) (string, error) {
	if cfg.NodeName == "" {
		return "", fmt.Errorf("kube: read annotation %s: the name of this node is not known", name)
	}
	log := cmp.Or(cfg.Log, slog.Default())
	ctx = klog.NewContext(ctx, clientLog(log))
	config, err := cfg.RESTConfig()
	if err != nil {
		return "", err
	}
	clients, err := Clients(config, core.SchemeGroupVersion)
	if err != nil {
		return "", err
	}
	var node core.Node
	if err := clients[0].Get().Resource("nodes").Name(cfg.NodeName).MaxRetries(0).Do(ctx).Into(&node); err != nil {
		return "", fmt.Errorf("kube: read annotation %s of Node %s from %s: %w", name, cfg.NodeName, config.Host, err)
	}
	return node.Annotations[name], nil
}
