package kube

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	events "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// eventServer takes events as an API server does, and lists what they regard.
type eventServer struct {
	t    *testing.T
	http *httptest.Server

	mu      sync.Mutex
	events  map[string]*events.Event // by namespace/name
	names   []string                 // in the order of their creation
	uids    map[string]string        // by kind's plural and namespace/name
	answer  func(*http.Request) *metav1.Status
	lose    int // so many answers to POST get lost after the work is done
	patches int
	posts   int
	types   []string // of bodies
}

func newEventServer(t *testing.T) *eventServer {
	s := &eventServer{t: t, events: map[string]*events.Event{}, uids: map[string]string{}}
	s.http = httptest.NewServer(s)
	t.Cleanup(s.http.Close)
	return s
}

func (s *eventServer) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// created returns how many events were created.
func (s *eventServer) created() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.names)
}

func (s *eventServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has left
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out any
	status := (*metav1.Status)(nil)
	if s.answer != nil {
		status = s.answer(r)
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case status != nil:
	case r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/apis/events.k8s.io/v1/namespaces/"):
		s.posts++
		s.types = append(s.types, r.Header.Get("Content-Type"))
		out, status = s.create(body, parts[4])
		if s.lose > 0 {
			s.lose--
			panic(http.ErrAbortHandler)
		}
	case r.Method == http.MethodPatch:
		s.patches++
		out, status = s.patch(r.Header.Get("Content-Type"), body, parts[4]+"/"+parts[6])
	case r.Method == http.MethodGet:
		out = s.list(r, parts)
	}
	w.Header().Set("Content-Type", "application/json")
	if status != nil {
		w.WriteHeader(int(status.Code))
		out = status
	}
	_ = json.NewEncoder(w).Encode(out) // fails when the client has left
}

// create has the rules of the API.
func (s *eventServer) create(body []byte, namespace string) (any, *metav1.Status) {
	o, _, err := serializer.NewCodecFactory(newScheme()).UniversalDeserializer().Decode(body, nil, nil)
	e, ok := o.(*events.Event)
	if err != nil || !ok {
		return nil, failure(400, metav1.StatusReasonBadRequest, fmt.Sprint(o, err))
	}
	key := namespace + "/" + e.Name
	bad := func() string {
		switch {
		case e.Namespace != namespace || e.Name == "":
			return "metadata"
		case e.Regarding.Namespace == "" && namespace != "default", e.Regarding.Namespace != "" &&
			e.Regarding.Namespace != namespace:
			return "involvedObject.namespace"
		case e.EventTime.IsZero() || e.EventTime.Nanosecond()%1000 != 0:
			return "eventTime"
		case e.Type != "Normal" && e.Type != "Warning":
			return "type"
		case e.Reason == "" || len(e.Reason) > 128 || e.Action == "" || len(e.Action) > 128:
			return "reason"
		case e.ReportingInstance == "" || len(e.ReportingInstance) > 128 || e.ReportingController != "kube-proxy":
			return "reportingInstance"
		case len(e.Note) > 1024 || !utf8.ValidString(e.Note):
			return "note"
		case e.Series != nil && (e.Series.Count < 2 || e.Series.LastObservedTime.IsZero()):
			return "series"
		}
		return ""
	}()
	switch {
	case bad != "":
		return nil, failure(422, metav1.StatusReasonInvalid, bad+" is invalid")
	case s.events[key] != nil:
		return nil, failure(409, metav1.StatusReasonAlreadyExists, key+" exists")
	}
	s.events[key] = e
	s.names = append(s.names, key)
	return e, nil
}

func (s *eventServer) patch(contentType string, body []byte, key string) (any, *metav1.Status) {
	e := s.events[key]
	if e == nil {
		return nil, failure(404, metav1.StatusReasonNotFound, key+" not found")
	}
	var p struct{ Series *events.EventSeries }
	if err := json.Unmarshal(body, &p); err != nil || p.Series == nil || p.Series.Count < 2 ||
		contentType != "application/strategic-merge-patch+json" {
		return nil, failure(422, metav1.StatusReasonInvalid, contentType+": "+string(body))
	}
	e.Series = p.Series
	return e, nil
}

func (s *eventServer) list(r *http.Request, parts []string) any {
	list := metav1.PartialObjectMetadataList{}
	namespace, plural := parts[len(parts)-2], parts[len(parts)-1]
	name := strings.TrimPrefix(r.FormValue("fieldSelector"), "metadata.name=")
	if uid := s.uids[plural+" "+namespace+"/"+name]; uid != "" {
		o := metav1.PartialObjectMetadata{}
		o.Name, o.Namespace = name, namespace
		if err := json.Unmarshal(fmt.Appendf(nil, "%q", uid), &o.UID); err != nil {
			panic(err)
		}
		list.Items = append(list.Items, o)
	}
	return list
}

// said prints all events in the order of their creation: "Reason kind name uid count".
func (s *eventServer) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, n := range s.names {
		e := s.events[n]
		if e == nil {
			continue
		}
		count := int32(1)
		if e.Series != nil {
			count = e.Series.Count
		}
		out = append(out, fmt.Sprintf("%s %s %s %q %d", e.Reason, e.Regarding.Kind, e.Regarding.Name, e.Regarding.UID,
			count))
	}
	return strings.Join(out, "; ")
}
