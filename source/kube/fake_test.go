package kube

import (
	"context"
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
)

// apiServer is an API server of a few hundred lines: four resources, LIST in pages, WATCH,
// streaming lists, bookmarks, protobuf and JSON, and what can go wrong with each.
type apiServer struct {
	http *httptest.Server

	mu       sync.Mutex
	listener *memory
	changed  chan struct{} // closed at the next change
	lives    int           // how often it was taken down: what was asked before is not answered
	rv       int
	objects  map[string]map[string]apiObject // by plural and namespace/name
	history  []change
	// The knobs.
	watchList bool // streaming lists are supported
	noStorage bool // but the storage does not do its part: the stream begins with an error, and ends
	json      bool // protobuf is not
	page      int  // most items of a page; 0: limits are ignored, as old watch caches do
	cut       int  // LIST bodies and streams end after so many bytes; 0: they do not
	compacted int  // versions up to here are forgotten
	silent    bool // a watch from the future is accepted, and says nothing of the past
	answer    func(*http.Request) *metav1.Status
	life      time.Duration // of a watch; 0: as the client asks
	ahead     int           // each watch begins with a bookmark that is so far in the future
	handler   http.Handler  // in place of this one; it may call this one
	tls       bool          // with the certificate of [authority]
	requests  []string
	// bulk: there are so many Services and slices beside the others; they are made when asked for.
	bulk int
}

type change struct {
	plural   string
	rv       int
	was, now apiObject
}

// serverAddr is where clients believe that the server is.
const serverAddr = "127.0.0.1:6443"

func newAPIServer(t *testing.T) *apiServer {
	s := &apiServer{rv: 100, watchList: true, changed: make(chan struct{}), objects: map[string]map[string]apiObject{}}
	s.up()
	t.Cleanup(func() {
		s.down()
		time.Sleep(5 * time.Minute) // client-go's pauses end by time alone
	})
	return s
}

// up makes the server reachable, in memory: a bubble of synctest knows when such connections wait.
func (s *apiServer) up() {
	handler := s.handler
	if handler == nil {
		handler = s
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listener = newMemory()
	s.http = &httptest.Server{Listener: s.listener, Config: &http.Server{Handler: handler}}
	if s.tls {
		s.http.StartTLS()
	} else {
		s.http.Start()
	}
}

func (s *apiServer) down() {
	s.http.Listener.Close()
	s.http.CloseClientConnections()
	s.mu.Lock() // a connection that was just coming has escaped
	defer s.mu.Unlock()
	s.lives++
	s.wake()
}

// dial is for [Config].
func (s *apiServer) dial(context.Context, string, string) (net.Conn, error) {
	s.mu.Lock()
	l := s.listener
	s.mu.Unlock()
	return l.dial()
}

// memory listens for connections of this process.
type memory struct {
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

func newMemory() *memory {
	m := &memory{conns: make(chan net.Conn), closed: make(chan struct{})}
	m.close = sync.OnceFunc(func() { close(m.closed) })
	return m
}

func (m *memory) Addr() net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(serverAddr)) }
func (m *memory) Close() error   { m.close(); return nil }

func (m *memory) Accept() (net.Conn, error) {
	select {
	case c := <-m.conns:
		return c, nil
	case <-m.closed:
		return nil, net.ErrClosed
	}
}

func (m *memory) dial() (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case m.conns <- theirs:
		return ours, nil
	case <-m.closed:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
}

// set changes the knobs or other state.
func (s *apiServer) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func key(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// resourceWith returns the one of the four resources.
func resourceWith(is func(*resource) bool) *resource {
	all := []*resource{services(), endpointSlices(), node("n"), serviceCIDRs()}
	return all[slices.IndexFunc(all, is)]
}

func plural(o apiObject) string {
	return resourceWith(func(r *resource) bool { return r.typ == reflect.TypeOf(o).Elem() }).plural
}

func (s *apiServer) put(objects ...apiObject) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range objects {
		s.rv++
		o.SetResourceVersion(strconv.Itoa(s.rv))
		p := plural(o)
		if s.objects[p] == nil {
			s.objects[p] = map[string]apiObject{}
		}
		s.history = append(s.history, change{p, s.rv, s.objects[p][key(o)], o})
		s.objects[p][key(o)] = o
	}
	s.wake()
}

func (s *apiServer) remove(p, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rv++
	s.history = append(s.history, change{p, s.rv, s.objects[p][key], nil})
	delete(s.objects[p], key)
	s.wake()
}

func (s *apiServer) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// backup returns a function that makes the data what they are now.
func (s *apiServer) backup() (restore func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rv, history := s.rv, slices.Clone(s.history)
	objects := map[string]map[string]apiObject{}
	for p, all := range s.objects {
		objects[p] = maps.Clone(all)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.rv, s.history, s.objects = rv, history, objects
	}
}

// asked counts the requests that contain all the parts.
func (s *apiServer) asked(parts ...string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(r, p) }) {
			n++
		}
	}
	return n
}

var testScheme = newScheme()

func (s *apiServer) info() runtime.SerializerInfo {
	media := runtime.ContentTypeProtobuf
	if s.json {
		media = runtime.ContentTypeJSON
	}
	info, ok := runtime.SerializerInfoForMediaType(serializer.NewCodecFactory(testScheme).SupportedMediaTypes(), media)
	if !ok {
		panic(media)
	}
	return info
}

func failure(code int, reason metav1.StatusReason, message string) *metav1.Status {
	return &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status: "Failure", Code: int32(code), Reason: reason, Message: message}
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r.URL.String())
	status := s.refusal(r)
	cut := s.cut
	s.mu.Unlock()
	if status != nil {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(status.Code))
		_ = json.NewEncoder(w).Encode(status)
		return
	}
	if cut > 0 {
		w = &cutWriter{w, cut}
	}
	if r.FormValue("watch") == "" {
		s.list(w, r)
	} else {
		s.watch(w, r)
	}
}

// cutWriter hangs up after some bytes.
type cutWriter struct {
	http.ResponseWriter
	left int
}

func (c *cutWriter) Write(b []byte) (int, error) {
	if len(b) > c.left {
		_, _ = c.ResponseWriter.Write(b[:c.left])
		panic(http.ErrAbortHandler)
	}
	c.left -= len(b)
	return c.ResponseWriter.Write(b)
}

func (c *cutWriter) Flush() { c.ResponseWriter.(http.Flusher).Flush() }

func resourceOf(r *http.Request) string { return r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:] }

// refusal is called with the lock held.
func (s *apiServer) refusal(r *http.Request) *metav1.Status {
	if s.answer != nil {
		if status := s.answer(r); status != nil {
			return status
		}
	}
	rv, err := strconv.Atoi(r.FormValue("resourceVersion"))
	future := rv > s.rv
	switch {
	case err != nil && r.FormValue("resourceVersion") != "":
		return failure(400, metav1.StatusReasonBadRequest, "invalid resource version")
	case r.FormValue("sendInitialEvents") == "true" && !s.watchList:
		return failure(422, metav1.StatusReasonInvalid, "sendInitialEvents is forbidden for watch unless the "+
			"WatchList feature gate is enabled")
	case future && (r.FormValue("watch") == "" || r.FormValue("sendInitialEvents") == "true" || !s.silent):
		status := failure(504, metav1.StatusReasonTimeout, "Too large resource version")
		status.Details = &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}}
		return status
	case r.FormValue("watch") != "" && r.FormValue("sendInitialEvents") == "" && rv > 0 && rv < s.compacted:
		return failure(410, metav1.StatusReasonExpired, "too old resource version")
	}
	return nil
}

func (s *apiServer) selected(r *http.Request, o apiObject) bool {
	if o == nil {
		return false
	}
	l, err := labels.Parse(r.FormValue("labelSelector"))
	if err != nil {
		panic(err)
	}
	f, err := fields.ParseSelector(r.FormValue("fieldSelector"))
	if err != nil {
		panic(err)
	}
	return l.Matches(labels.Set(o.GetLabels())) && f.Matches(fields.Set{"metadata.name": o.GetName()})
}

// present returns the selected objects, sorted by name. The lock is held.
func (s *apiServer) present(r *http.Request) []apiObject {
	var out []apiObject
	for _, o := range s.objects[resourceOf(r)] {
		if s.selected(r, o) {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b apiObject) int { return strings.Compare(key(a), key(b)) })
	return out
}

func (s *apiServer) list(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	all, rv, limit, info := s.present(r), s.rv, 0, s.info()
	if s.page > 0 {
		limit, _ = strconv.Atoi(r.FormValue("limit"))
		limit = min(limit, s.page)
	}
	s.mu.Unlock()
	list := newOf(resourceOf(r), "List")
	from, _ := strconv.Atoi(r.FormValue("continue"))
	accessor, _ := meta.ListAccessor(list)
	if s.bulk > 0 && limit > 0 {
		for i := from; i < min(from+limit, s.bulk); i++ {
			if o := bulk(i, resourceOf(r)); o != nil {
				all = append(all, o)
			}
		}
		if from+limit < s.bulk && len(all) > 0 {
			accessor.SetContinue(strconv.Itoa(from + limit))
		}
		from = 0
	}
	all = all[from:]
	if limit > 0 && limit < len(all) {
		all = all[:limit]
		accessor.SetContinue(strconv.Itoa(from + limit))
	}
	accessor.SetResourceVersion(strconv.Itoa(rv))
	var items []runtime.Object
	for _, o := range all {
		items = append(items, o)
	}
	if err := meta.SetList(list, items); err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", info.MediaType)
	_ = info.Serializer.Encode(list, w) // fails when the client has left
}

// newOf returns an empty object of a resource, or a list of them if suffix is "List".
func newOf(plural, suffix string) runtime.Object {
	r := resourceWith(func(r *resource) bool { return r.plural == plural })
	kind := r.version.WithKind(r.kind + suffix)
	o, err := testScheme.New(kind)
	if err != nil {
		panic(err)
	}
	o.GetObjectKind().SetGroupVersionKind(kind)
	return o
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	info := s.info()
	s.mu.Unlock()
	w.Header().Set("Content-Type", info.MediaType+";stream=watch")
	w.WriteHeader(200)
	flush := w.(http.Flusher).Flush
	flush()
	frames := streaming.NewEncoder(info.StreamSerializer.Framer.NewFrameWriter(w), info.StreamSerializer.Serializer)
	send := func(kind watch.EventType, o apiObject) bool {
		raw, err := runtime.Encode(info.Serializer, o)
		if err != nil {
			panic(err)
		}
		return frames.Encode(&metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: raw}}) == nil
	}
	bookmark := func(rv int, initial bool) bool {
		o := newOf(resourceOf(r), "").(apiObject)
		o.SetResourceVersion(strconv.Itoa(rv))
		if initial {
			o.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		}
		return send(watch.Bookmark, o)
	}
	at, _ := strconv.Atoi(r.FormValue("resourceVersion"))
	s.mu.Lock()
	life, noStorage, ahead := s.lives, s.noStorage, s.ahead
	var end <-chan time.Time
	if s.life > 0 {
		end = time.After(s.life)
	} else if seconds, err := strconv.Atoi(r.FormValue("timeoutSeconds")); err == nil && seconds > 0 {
		end = time.After(time.Duration(seconds) * time.Second)
	}
	s.mu.Unlock()
	if r.FormValue("sendInitialEvents") == "true" && noStorage {
		raw, err := runtime.Encode(info.Serializer, failure(500, metav1.StatusReasonInternalError,
			"a watch stream was requested by the client but the required storage feature RequestWatchProgress is "+
				"disabled"))
		if err != nil {
			panic(err)
		}
		_ = frames.Encode(&metav1.WatchEvent{Type: string(watch.Error), Object: runtime.RawExtension{Raw: raw}})
		return
	}
	if r.FormValue("sendInitialEvents") == "true" {
		s.mu.Lock()
		all := s.present(r)
		at = s.rv
		s.mu.Unlock()
		for _, o := range all {
			if !send(watch.Added, o) {
				return
			}
		}
		for i := range s.bulk {
			if o := bulk(i, resourceOf(r)); o != nil && !send(watch.Added, o) {
				return
			}
		}
		if !bookmark(at, true) {
			return
		}
	}
	if ahead > 0 && (!bookmark(at+ahead, false) || !bookmark(at+ahead/2, false)) {
		return
	}
	flush()
	for {
		s.mu.Lock()
		if s.lives != life {
			s.mu.Unlock()
			panic(http.ErrAbortHandler)
		}
		var news []change
		i, _ := slices.BinarySearchFunc(s.history, at+1, func(c change, rv int) int { return c.rv - rv })
		for _, c := range s.history[i:] {
			if c.plural == resourceOf(r) {
				news = append(news, c)
			}
		}
		at = max(at, s.rv)
		changed := s.changed
		s.mu.Unlock()
		for _, c := range news {
			was, now := s.selected(r, c.was), s.selected(r, c.now)
			ok := true
			switch {
			case now && was:
				ok = send(watch.Modified, c.now)
			case now:
				ok = send(watch.Added, c.now)
			case was:
				o := c.was.DeepCopyObject().(apiObject)
				o.SetResourceVersion(strconv.Itoa(c.rv))
				ok = send(watch.Deleted, o)
			}
			if !ok {
				return
			}
		}
		flush()
		select {
		case <-changed:
		case <-end:
			return
		case <-r.Context().Done():
			return
		}
	}
}
