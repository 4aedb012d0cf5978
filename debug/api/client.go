package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"time"

	"kube-proxy/debug/inspect"
)

// ErrNotAsked means that no proxy could be queried: none runs there, access is denied, or it has
// another version.
var ErrNotAsked = errors.New("cannot query the proxy")

const (
	// answerWait is how long an answer may take to begin.
	answerWait = 30 * time.Second
	// wholeWait is how long an answer may take in all, and MaxAnswer how long it may be, in bytes,
	// unless [Client.Limit] sets others. A table of 100,000 Services fits.
	wholeWait = 2 * time.Minute
	MaxAnswer = 256 << 20
)

// Client queries a proxy. Make one with [NewClient], [Over] or [Local].
type Client struct {
	http    *http.Client
	at      string
	connect func(context.Context) (net.Conn, error)
	within  time.Duration
	most    int64
}

// Limit sets how long an answer may take in all, and how many bytes it may have; of a stream, each
// of its answers. It returns the client.
func (c *Client) Limit(within time.Duration, most int64) *Client {
	c.within, c.most = within, most
	return c
}

// connectWait is how long it may take to connect.
const connectWait = 5 * time.Second

// NewClient returns a client for the proxy that listens at a unix socket, on Windows a named pipe.
func NewClient(path string) *Client {
	return Over(path, func(ctx context.Context) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, connectWait)
		defer cancel()
		return dial(ctx, path)
	})
}

// Over returns a client for the proxy whose admin socket connect connects to; at names it in
// messages.
func Over(at string, connect func(context.Context) (net.Conn, error)) *Client {
	t := &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: maxHeader,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return connect(ctx) }}
	return &Client{at: at, connect: connect, http: &http.Client{Transport: t}, within: wholeWait, most: MaxAnswer}
}

// Connect connects to the admin socket, for callers that speak HTTP themselves. An error wraps
// [ErrNotAsked].
func (c *Client) Connect(ctx context.Context) (net.Conn, error) {
	conn, err := c.connect(ctx)
	if err != nil {
		return nil, c.unreachable(err)
	}
	return conn, nil
}

// Local returns a client for the state of this process.
func Local(about *inspect.Inspector) *Client {
	server := &http.Server{Handler: NewHandler(about), ErrorLog: noLog()}
	return Over("this process", func(context.Context) (net.Conn, error) {
		here, there := net.Pipe()
		go server.Serve(&piped{there}) // it returns at once
		return here, nil
	})
}

// Get sends a query, and decodes the answer into out. An error is an [inspect.Problem] of the
// question, or wraps [ErrNotAsked].
func (c *Client) Get(ctx context.Context, query string, params url.Values, out any) error {
	body, err := c.open(ctx, query, params)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(out); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%w: incomplete or invalid answer from %s: %w", ErrNotAsked, c.at, body.why(err))
	}
	return nil
}

// Each sends a query with a stream of answers, and calls f with each answer until it returns false
// or ctx ends.
func (c *Client) Each(ctx context.Context, query string, params url.Values, f func(json.RawMessage) bool) error {
	body, err := c.open(ctx, query, params)
	if err != nil {
		return err
	}
	defer body.Close()
	for d := json.NewDecoder(body); ; {
		var answer json.RawMessage
		switch err := d.Decode(&answer); {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return fmt.Errorf("%w: %s ended the stream: %w", ErrNotAsked, c.at, body.why(err))
		case !f(answer):
			return nil
		}
		body.again()
	}
}

// open sends a query, and returns the answer as a stream.
func (c *Client) open(ctx context.Context, query string, params url.Values) (*answer, error) {
	u := url.URL{Scheme: "http", Host: "kube-proxy", Path: "/v1/" + query, RawQuery: params.Encode()}
	asking := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	begun := time.AfterFunc(min(answerWait, c.within)+patience(params), func() { cancel(context.DeadlineExceeded) })
	defer begun.Stop()
	whole := time.AfterFunc(c.within+patience(params), func() { cancel(context.DeadlineExceeded) })
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		whole.Stop()
		cancel(nil)
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		late := errors.Is(context.Cause(ctx), context.DeadlineExceeded)
		whole.Stop()
		cancel(nil)
		switch {
		case asking.Err() != nil: // the caller has given up
			return nil, asking.Err()
		case late:
			err = context.DeadlineExceeded
		}
		return nil, c.unreachable(err)
	}
	body := &answer{body: resp.Body, client: c, whole: whole, ctx: ctx, cancel: cancel, left: c.most}
	if err := c.refused(resp); err != nil {
		return nil, errors.Join(err, body.Close())
	}
	return body, nil
}

// patience is how much longer a question may take that waits for something.
func patience(params url.Values) time.Duration {
	d, _ := time.ParseDuration(params.Get("wait")) // the server reports the fault in it
	return max(0, d)
}

// answer is a body that is read within the client's limits: the other side may be hostile.
type answer struct {
	body   io.ReadCloser
	client *Client
	whole  *time.Timer // ends the request
	ctx    context.Context
	cancel context.CancelCauseFunc
	left   int64 // bytes that may still be read
}

// errTooLong means that an answer has more bytes than the client reads.
var errTooLong = errors.New("answer too long")

// Read is part of [io.Reader].
func (a *answer) Read(b []byte) (int, error) {
	if a.left <= 0 {
		return 0, fmt.Errorf("%w: more than %d MiB", errTooLong, a.client.most>>20)
	}
	n, err := a.body.Read(b[:min(int64(len(b)), a.left)])
	a.left -= int64(n)
	return n, err
}

// again resets the limits for the next answer of a stream.
func (a *answer) again() {
	a.whole.Reset(a.client.within)
	a.left = a.client.most
}

// why returns the reason of a failed read.
func (a *answer) why(err error) error {
	if errors.Is(context.Cause(a.ctx), context.DeadlineExceeded) {
		return fmt.Errorf("not complete within %s", a.client.within)
	}
	return err
}

// Close ends the request.
func (a *answer) Close() error {
	a.whole.Stop()
	defer a.cancel(nil)
	return a.body.Close()
}

// unreachable returns the reason why no proxy answers, and a remedy.
func (c *Client) unreachable(err error) error {
	var why string
	switch {
	case errors.Is(err, fs.ErrNotExist):
		why = fmt.Sprintf("there is no socket %s: no kube-proxy runs here, or it is older than this command, or it "+
			"uses another --admin-socket (pass the same one); "+
			"for a containerized proxy, run this in its container: kubectl exec -n kube-system POD -- kube-proxy …; "+
			"for a folder of manifests: --manifests DIR", c.at)
	case errors.Is(err, syscall.ECONNREFUSED):
		why = fmt.Sprintf("no process listens at %s: its kube-proxy has exited; the rules it wrote are still in force",
			c.at)
	case errors.Is(err, fs.ErrPermission):
		why = fmt.Sprintf("%s is only for root, on Windows for administrators", c.at)
	case errors.Is(err, context.DeadlineExceeded) || isTimeout(err):
		why = fmt.Sprintf("no answer from %s: the process is stopped, or has too many queries; see its log and /livez",
			c.at)
	default:
		why = fmt.Sprintf("%s: %v", c.at, inner(err))
	}
	return fmt.Errorf("%w: %s", ErrNotAsked, why)
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// inner is the error without the URL, which the user did not type.
func inner(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// maxProblem limits the answer of an error, in bytes.
const maxProblem = 64 << 10

// refused returns the error that an answer is.
func (c *Client) refused(resp *http.Response) error {
	is := resp.Header.Get(Header)
	switch {
	case is == "":
		return fmt.Errorf("%w: %s is not a known kube-proxy (HTTP %d): check --admin-socket, or use the command of "+
			"the running version", ErrNotAsked, c.at, resp.StatusCode)
	case is != version:
		return fmt.Errorf("%w: the kube-proxy at %s has API version %q, this command %s: use the command of the "+
			"running version", ErrNotAsked, c.at, inspect.Cut(is), version)
	case resp.StatusCode == http.StatusOK:
		return nil
	}
	var p inspect.Problem
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxProblem)).Decode(&p); err != nil || p.Text == "" {
		return fmt.Errorf("%w: %s answered HTTP %d without a reason", ErrNotAsked, c.at, resp.StatusCode)
	}
	return &p
}

// piped is a listener with one connection, whose other end is in this process.
type piped struct{ conn net.Conn }

func (p *piped) Accept() (net.Conn, error) {
	if p.conn == nil {
		return nil, net.ErrClosed
	}
	conn := p.conn
	p.conn = nil
	return conn, nil
}

func (p *piped) Close() error   { return nil }
func (p *piped) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }
