//go:build linux

package page

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/logtest"
)

// timeout is how long a test waits for an expected event.
const timeout = 60 * time.Second

// place is a network namespace in which the proxy and the browser run.
type place struct {
	t  *testing.T
	ns *netlab.Namespace
}

func newPlace(t *testing.T) *place {
	p := &place{t, netlab.NamespaceForTest(t)}
	for _, args := range []string{"link set lo up", "link add node type veth peer name lan",
		"address add 172.18.0.2/24 dev node", "link set node up", "link set lan up",
		"route add 100.64.0.0/10 via 172.18.0.1", "route add 10.96.0.0/11 via 172.18.0.1",
		"link add pods type veth peer name far", "link set pods up", "link set far up",
		"route add 100.64.200.0/24 dev pods", "neigh add 172.18.0.1 lladdr 02:00:00:00:00:01 dev node",
		"route add 10.1.0.0/24 dev lan", "neigh add 10.1.0.9 lladdr 02:00:00:00:00:09 dev lan",
		"address add 100.64.210.1/32 dev lo"} {
		p.run("ip", strings.Fields(args)...)
	}
	p.run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0")
	return p
}

// run runs a program there until it ends, and returns its output.
func (p *place) run(name string, args ...string) string {
	p.t.Helper()
	var out []byte
	var err error
	p.ns.Do(func() { out, err = exec.Command(name, args...).Output() })
	if err != nil {
		p.t.Errorf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// program is a running program.
type program struct {
	*exec.Cmd
	out logtest.Buffer
}

// start starts a program, which ends with the test.
func (p *place) start(name string, args ...string) *program {
	p.t.Helper()
	c := &program{Cmd: exec.Command(name, args...)}
	c.Stdout, c.Stderr = &c.out, &c.out
	var err error
	p.ns.Do(func() { err = c.Start() })
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		_ = c.Process.Signal(os.Interrupt)
		ended := time.AfterFunc(10*time.Second, func() { c.Process.Kill() })
		_ = c.Wait()
		ended.Stop()
		if p.t.Failed() {
			text := c.out.String()
			p.t.Logf("%s: %s", name, text[max(0, len(text)-3000):])
		}
	})
	return c
}

// dial connects to a loopback port there.
func (p *place) dial(port string) (c net.Conn, err error) {
	p.ns.Do(func() { c, err = net.DialTimeout("tcp4", "127.0.0.1:"+port, 10*time.Second) })
	return c, err
}

// listen listens at a loopback port there.
func (p *place) listen(port string) net.Listener {
	p.t.Helper()
	var l net.Listener
	var err error
	p.ns.Do(func() { l, err = net.Listen("tcp4", "127.0.0.1:"+port) })
	if err != nil {
		p.t.Fatal(err)
	}
	return l
}

// client sends requests to ports there.
func (p *place) client() *http.Client {
	return &http.Client{Timeout: timeout, Transport: &http.Transport{DialContext: func(_ context.Context, _,
		addr string) (net.Conn, error) {
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		return p.dial(port)
	}}}
}

// until waits for a condition; what describes it.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(timeout); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", timeout, what)
		}
	}
}

// browser is a session of WebDriver: https://www.w3.org/TR/webdriver2/.
type browser struct {
	t       *testing.T
	http    *http.Client
	session string
	page    string // URL of the status page
}

// driverPort is the port of chromedriver.
const driverPort = "9515"

// element is WebDriver's key of an element reference.
const element = "element-6066-11e4-a52e-4f735466cecf"

func newBrowser(t *testing.T, p *place, page string) *browser {
	t.Helper()
	p.start("chromedriver", "--port="+driverPort, "--silent")
	b := &browser{t: t, http: p.client(), page: page}
	until(t, "chromedriver answers", func() bool {
		a, err := b.http.Get("http://localhost:" + driverPort + "/status")
		if err == nil {
			a.Body.Close()
		}
		return err == nil
	})
	var session struct {
		SessionID string `json:"sessionId"`
	}
	b.do("POST", "/session", map[string]any{"capabilities": map[string]any{"alwaysMatch": map[string]any{
		"browserName": "chrome", "unhandledPromptBehavior": "ignore",
		"goog:loggingPrefs": map[string]string{"browser": "ALL"},
		"goog:chromeOptions": map[string]any{"args": []string{"--headless=new", "--no-sandbox", "--disable-gpu",
			"--disable-dev-shm-usage", "--hide-scrollbars",
			"--window-size=1280,800", "--user-data-dir=" + t.TempDir(), "--no-first-run",
			"--disable-background-networking", "--disable-component-update"}},
	}}}, &session)
	b.session = "/session/" + session.SessionID
	t.Cleanup(func() { b.do("DELETE", b.session, nil, nil) })
	return b
}

// do sends a command, and fails the test if it fails.
func (b *browser) do(method, path string, body, value any) {
	b.t.Helper()
	if err := b.try(method, path, body, value); err != nil {
		b.t.Fatalf("WebDriver %s %s: %v", method, path, err)
	}
}

func (b *browser) try(method, path string, body, value any) error {
	var send io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		send = bytes.NewReader(text)
	} else if method == "POST" {
		send = strings.NewReader("{}")
	}
	r, err := http.NewRequest(method, "http://localhost:"+driverPort+path, send)
	if err != nil {
		return err
	}
	a, err := b.http.Do(r)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	var answer struct{ Value json.RawMessage }
	if err := json.NewDecoder(a.Body).Decode(&answer); err != nil {
		return err
	}
	if a.StatusCode != 200 {
		return fmt.Errorf("%d: %.600s", a.StatusCode, answer.Value)
	}
	if value != nil {
		return json.Unmarshal(answer.Value, value)
	}
	return nil
}

// load opens a page.
func (b *browser) load(url string) {
	b.t.Helper()
	b.do("POST", b.session+"/url", map[string]string{"url": url}, nil)
}

// script runs a script in the page, and returns its value.
func script[V any](b *browser, text string, args ...any) V {
	b.t.Helper()
	var v V
	if args == nil {
		args = []any{}
	}
	b.do("POST", b.session+"/execute/sync", map[string]any{"script": text, "args": args}, &v)
	return v
}

// later runs an asynchronous script, which calls done with its value.
func later[V any](b *browser, text string) V {
	b.t.Helper()
	var v V
	b.do("POST", b.session+"/execute/async", map[string]any{"script": "const done = arguments[0]; " + text,
		"args": []any{}}, &v)
	return v
}

// width sets the width of the screen, in CSS pixels; 0 for that of the window.
func (b *browser) width(pixels int) {
	b.t.Helper()
	if pixels == 0 {
		b.cdp("Emulation.clearDeviceMetricsOverride", nil, nil)
		return
	}
	b.cdp("Emulation.setDeviceMetricsOverride", map[string]any{"width": pixels, "height": 844, "deviceScaleFactor": 1,
		"mobile": pixels < 500}, nil)
}

// at returns the element that a CSS selector finds.
func (b *browser) at(css string) string {
	b.t.Helper()
	var found map[string]string
	var err error
	until(b.t, "there is "+css, func() bool {
		err = b.try("POST", b.session+"/element", map[string]string{"using": "css selector", "value": css}, &found)
		return err == nil
	})
	return found[element]
}

func (b *browser) click(css string) {
	b.t.Helper()
	b.do("POST", b.session+"/element/"+b.at(css)+"/click", nil, nil)
}

// text returns the text of an element; "" if it does not exist.
func (b *browser) text(css string) string {
	b.t.Helper()
	return script[string](b, "const e = document.querySelector(arguments[0]); return e ? e.innerText : ''", css)
}

// Keys of WebDriver.
const (
	keyTab, keyEnter, keyEnd, keyHome, keyDown, keyUp, keyPageDown, keyRight = "\ue004", "\ue007", "\ue010", "\ue011",
		"\ue015", "\ue013", "\ue00f", "\ue014"
)

// press presses keys one after the other, at the focus.
func (b *browser) press(keys string) {
	b.t.Helper()
	var actions []map[string]string
	for _, k := range keys {
		actions = append(actions, map[string]string{"type": "keyDown", "value": string(k)},
			map[string]string{"type": "keyUp", "value": string(k)})
	}
	b.do("POST", b.session+"/actions", map[string]any{"actions": []any{map[string]any{"type": "key", "id": "keyboard",
		"actions": actions}}}, nil)
}

// cdp sends a command of the Chrome DevTools Protocol, for functions that WebDriver lacks.
func (b *browser) cdp(command string, params map[string]any, value any) {
	b.t.Helper()
	if params == nil {
		params = map[string]any{}
	}
	b.do("POST", b.session+"/goog/cdp/execute", map[string]any{"cmd": command, "params": params}, value)
}

// clean fails the test if the page logged an error: a failed script, a missing file, a refusal of
// the content security policy. It takes the error codes that the test expects.
func (b *browser) clean(expected ...string) {
	b.t.Helper()
	var log []struct{ Level, Message, Source string }
	b.do("POST", b.session+"/se/log", map[string]string{"type": "browser"}, &log)
lines:
	for _, l := range log {
		for _, e := range expected {
			if strings.Contains(l.Message, e) {
				continue lines
			}
		}
		if l.Level == "SEVERE" || l.Level == "WARNING" {
			b.t.Errorf("console: %s %s: %s", l.Level, l.Source, l.Message)
		}
	}
}

// screenshot returns a PNG of the visible part.
func (b *browser) screenshot() []byte {
	b.t.Helper()
	var text string
	b.do("GET", b.session+"/screenshot", nil, &text)
	png, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		b.t.Fatal(err)
	}
	return png
}
