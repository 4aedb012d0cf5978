package ui

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
)

// howToReach is told to whoever asks from elsewhere.
const howToReach = `The status page answers root on this machine alone. From elsewhere:

  kubectl --namespace kube-system port-forward pod/POD %[1]s:%[1]s
  ssh -L %[1]s:localhost:%[1]s root@NODE

and then open http://localhost:%[1]s/ui/ . See docs/page.md.
`

// refusal says why a request is not answered; "" if it is. Both ends must be loopback addresses: what a header says of another
// client (X-Forwarded-For) or another name is written by whoever sends it. The name that the browser asked for must be a
// loopback name too, or else any page of the web could have its own name point here and read what the answers say.
func refusal(r *http.Request) string {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	switch {
	case local == nil || !loopback(local.String()):
		return "this address is not a loopback address"
	case !loopback(r.RemoteAddr):
		return "the client is not on this machine"
	case !loopbackName(r.Host):
		return fmt.Sprintf("the host name %q is not localhost", short(r.Host, 100))
	case fromAnotherPage(r.Header):
		return "another site asks"
	}
	return ""
}

// stranger says why the program that asks may not see the page; "" if it may. Other users' programs, and
// those of containers in the host's network that are not root, would learn all Services (TN-84).
func (h *Handler) stranger(r *http.Request) string {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if h.owner == nil || local == nil {
		return ""
	}
	client, err1 := netip.ParseAddrPort(r.RemoteAddr)
	server, err2 := netip.ParseAddrPort(local.String())
	if err1 != nil || err2 != nil {
		return "the connection's addresses cannot be read"
	}
	uid, err := h.owner(r.Context(), client, server)
	switch {
	case err != nil:
		return "the kernel does not say which user asks"
	case uid != 0 && uid != uint32(os.Geteuid()):
		return fmt.Sprintf("the user %d is not root", uid)
	}
	return ""
}

// fromAnotherPage reports whether a browser says that a page asks which is not ours, also one at another port of localhost, behind which
// may be anybody's program. It could not read the answer, but have us work for it. Who follows a link opens a page by himself, and is
// answered. (https://www.w3.org/TR/fetch-metadata/)
func fromAnotherPage(h http.Header) bool {
	switch h.Get("Sec-Fetch-Site") {
	case "cross-site", "same-site":
		return h.Get("Sec-Fetch-Mode") != "navigate" || h.Get("Sec-Fetch-Dest") != "document"
	}
	return false
}

// loopback reports whether an "address:port" is one of this machine alone.
func loopback(hostPort string) bool {
	a, err := netip.ParseAddrPort(hostPort)
	return err == nil && a.Addr().Unmap().IsLoopback()
}

// loopbackName reports whether a Host header, with or without a port, names this machine alone.
func loopbackName(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	} else if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		name = host[1 : len(host)-1]
	}
	if strings.EqualFold(name, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(name)
	return err == nil && a.Zone() == "" && a.Unmap().IsLoopback()
}

// port is that of the address that was asked, for the text that says how to get here.
func port(r *http.Request) string {
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		if a, err := netip.ParseAddrPort(local.String()); err == nil {
			return fmt.Sprint(a.Port())
		}
	}
	return "10249"
}

// contentPolicy is what pages may do: load what this package serves, and nothing else.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// secure sets the headers that every answer has.
func secure(h http.Header) {
	h.Set("Content-Security-Policy", contentPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Frame-Options", "DENY") // for browsers that do not know frame-ancestors
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
	h.Set("Cache-Control", "no-store")
}
