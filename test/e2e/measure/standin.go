package measure

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"

	"kube-proxy/internal/netlab"
)

// standIn is an API server that holds its objects as encoded bytes. It exists because filling a
// real one with 100,000 services takes the better part of an hour. It supports streaming lists in
// protobuf, and drops only history: a client that reconnects must list again.
type standIn struct {
	info     runtime.SerializerInfo
	listener net.Listener
	server   *http.Server

	mu        sync.Mutex
	version   int
	resources map[string]*standInResource // by plural
}

type standInResource struct {
	kind    schema.GroupVersionKind
	object  func() object // an empty one
	index   map[string]int
	objects [][]byte // as the API encodes them
	streams map[chan frame]struct{}
}

type object interface {
	runtime.Object
	metav1.Object
}

// frame is an event on its way.
type frame struct {
	event watch.EventType
	raw   []byte
}

// newStandIn starts a stand-in on 127.0.0.1 of node1.
func newStandIn(lab *netlab.Lab) (*standIn, error) {
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		return nil, fmt.Errorf("this client-go has no protobuf")
	}
	s := &standIn{info: info, resources: map[string]*standInResource{}}
	for plural, r := range map[string]*standInResource{
		"services": {kind: corev1.SchemeGroupVersion.WithKind("Service"), object: func() object {
			return &corev1.Service{}
		}},
		"nodes": {kind: corev1.SchemeGroupVersion.WithKind("Node"), object: func() object { return &corev1.Node{} }},
		"endpointslices": {kind: discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), object: func() object {
			return &discoveryv1.EndpointSlice{}
		}},
		"servicecidrs": {kind: networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"), object: func() object {
			return &networkingv1.ServiceCIDR{}
		}},
	} {
		r.index, r.streams = map[string]int{}, map[chan frame]struct{}{}
		s.resources[plural] = r
	}
	err := lab.Do(netlab.Node1, func() (err error) {
		s.listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen as stand-in for the API server: %w", err)
	}
	s.server = &http.Server{Handler: s}
	go s.server.Serve(s.listener) // until close
	return s, nil
}

func (s *standIn) close() error { return s.server.Close() }

// kubeconfig writes a kubeconfig for the stand-in into a folder.
func (s *standIn) kubeconfig(dir string) (string, error) {
	file := filepath.Join(dir, "stand-in.kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}],
"clusters": [{"name": "c", "cluster": {"server": "http://%s"}}]}`, s.listener.Addr())
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return "", fmt.Errorf("write the kubeconfig of the stand-in: %w", err)
	}
	return file, nil
}

// put creates or replaces an object. It sets the version.
func (s *standIn) put(plural string, o object) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.resources[plural]
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
	raw, err := s.encode(r, o)
	if err != nil {
		return fmt.Errorf("encode %s of the stand-in: %w", plural, err)
	}
	key, f := o.GetNamespace()+"/"+o.GetName(), frame{watch.Modified, raw}
	if at, ok := r.index[key]; ok {
		r.objects[at] = raw
	} else {
		r.index[key] = len(r.objects)
		r.objects = append(r.objects, raw)
		f.event = watch.Added
	}
	for stream := range r.streams {
		stream <- f
	}
	return nil
}

func (s *standIn) encode(r *standInResource, o object) ([]byte, error) {
	return runtime.Encode(scheme.Codecs.EncoderForVersion(s.info.Serializer, r.kind.GroupVersion()), o)
}

// ServeHTTP answers streaming lists.
func (s *standIn) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r := s.resources[path.Base(req.URL.Path)]
	if r == nil || req.FormValue("watch") == "" || req.FormValue("sendInitialEvents") != "true" {
		http.Error(w, "the stand-in has streaming lists only", http.StatusGone)
		return
	}
	w.Header().Set("Content-Type", s.info.MediaType+";stream=watch")
	frames := streaming.NewEncoder(s.info.StreamSerializer.Framer.NewFrameWriter(w), s.info.StreamSerializer.Serializer)
	send := func(f frame) bool {
		return frames.Encode(&metav1.WatchEvent{Type: string(f.event), Object: runtime.RawExtension{Raw: f.raw}}) == nil
	}

	s.mu.Lock()
	stream := make(chan frame, 1000)
	r.streams[stream] = struct{}{}
	initial := append([][]byte(nil), r.objects...)
	mark := r.object()
	mark.SetResourceVersion(strconv.Itoa(s.version))
	mark.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	end, err := s.encode(r, mark)
	s.mu.Unlock()
	defer s.leave(r, stream)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	for _, raw := range initial {
		if !send(frame{watch.Added, raw}) {
			return
		}
	}
	for f := (frame{watch.Bookmark, end}); send(f); {
		w.(http.Flusher).Flush()
		select {
		case <-req.Context().Done():
			return
		case f = <-stream:
		}
	}
}

// leave ends a stream; its last events are not read.
func (s *standIn) leave(r *standInResource, stream chan frame) {
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-stream:
			case <-done:
				return
			}
		}
	}()
	s.mu.Lock()
	delete(r.streams, stream)
	s.mu.Unlock()
	close(done)
}

// serviceAddr is the ClusterIP of service number i of the stand-in.
func serviceAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)})
}

// place gives a service an address, as an API server would.
func (s *standIn) place(service *corev1.Service, i int) {
	family, policy := corev1.IPv4Protocol, corev1.IPFamilyPolicySingleStack
	service.Spec.Type, service.Spec.SessionAffinity = corev1.ServiceTypeClusterIP, corev1.ServiceAffinityNone
	service.Spec.ClusterIP = serviceAddr(i).String()
	service.Spec.ClusterIPs = []string{service.Spec.ClusterIP}
	service.Spec.IPFamilies, service.Spec.IPFamilyPolicy = []corev1.IPFamily{family}, &policy
}
