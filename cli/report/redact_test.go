package report

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const answer = `{"node": "db-7.corp.example", "severity": "warning", "state": "ok", "services": ["shop/web", "pay/ledger"],
 "list": [{"namespace": "shop", "name": "web", "type": "ClusterIP", "why": "shop/web:http has no endpoint on db-7.corp.example."}],
 "text": "web.shop.svc at 10.96.3.4:80, [fd12:3456::7]:80 and 10.96.0.0/16; 10.96.3.4. At 12:30:45 https://api.corp.example:6443 failed",
 "ranges": ["203.0.113.0/24", "127.0.0.1/32", "169.254.20.10", "::ffff:203.0.113.9"], "port": 8443, "big": 12345678901234567890}`

// A redacted answer has none of the names and addresses, keeps words of a fixed set, numbers, times
// and the structure of addresses, and says the same thing by the same pseudonym.
func TestRedactor(t *testing.T) {
	r := NewRedactor()
	if err := r.Learn(json.RawMessage(answer)); err != nil {
		t.Fatal(err)
	}
	text, err := r.JSON(json.RawMessage(answer))
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"shop", "web", "pay", "ledger", "corp", "db-7", "10.96.3", "fd12:3456",
		"203.0.113"} {
		if strings.Contains(string(text), secret) {
			t.Errorf("%s is in %s", secret, text)
		}
	}
	for _, kept := range []string{`"warning"`, `"ok"`, `"ClusterIP"`, "namespace-1/service-1:http",
		"service-1.namespace-1.svc", "12:30:45", "::ffff:203.", "https://host-1:6443", "127.0.0.1/32",
		"169.254.20.10", "8443", "12345678901234567890"} {
		if !strings.Contains(string(text), kept) {
			t.Errorf("%s is not in %s", kept, text)
		}
	}
	inside := netip.MustParsePrefix(r.Text("10.96.0.0/16"))
	if a := netip.MustParseAddr(r.Text("10.96.3.4")); !inside.Contains(a) || inside.Addr().AsSlice()[0] != 10 {
		t.Errorf("%s is not in %s", a, inside)
	}
	if other := NewRedactor().Text("10.96.3.4"); other == r.Text("10.96.3.4") {
		t.Error("two reports have the same pseudonym")
	}
}

// The pseudonyms of two addresses have as long a common prefix as the addresses.
func TestPrefixesStay(t *testing.T) {
	r, random := NewRedactor(), rand.New(rand.NewPCG(1, 2))
	common := func(a, b netip.Addr) int {
		for bits := a.BitLen(); ; bits-- {
			if p, _ := a.Prefix(bits); p.Contains(b) {
				return bits
			}
		}
	}
	for range 500 {
		a := [4]byte{100, byte(random.Uint32()), byte(random.Uint32()), byte(random.Uint32())}
		b := a
		b[random.IntN(4)] ^= 1 << random.IntN(8)
		x, y := netip.AddrFrom4(a), netip.AddrFrom4(b)
		if want, got := common(x, y), common(r.Addr(x), r.Addr(y)); x.IsMulticast() == y.IsMulticast() &&
			!y.IsLoopback() && !y.IsMulticast() && want != got {
			t.Errorf("%s and %s have %d common bits, their pseudonyms %d", x, y, want, got)
		}
	}
}

// Whatever an answer has, redaction returns JSON or an error.
func FuzzRedactor(f *testing.F) {
	f.Add([]byte(answer))
	f.Add([]byte(`{"name": "1.2.3.4", "service": "/", "x": "https://:/::/999"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r := NewRedactor()
		if r.Learn(raw) != nil {
			return
		}
		text, err := r.JSON(raw)
		if err != nil || !json.Valid(text) {
			t.Errorf("%q becomes %q, %v", raw, text, err)
		}
	})
}

// The archive has the files, only its owner may read it, and an existing file stays.
func TestWrite(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.tar.gz")
	if err := Write(name, "a", time.Unix(1, 0), []File{{"x.json", []byte("1")}, {"y.json", []byte("22")}}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := Write(name, "a", time.Now(), nil); !os.IsExist(err) && !strings.Contains(err.Error(), "exist") {
		t.Errorf("an existing file: %v", err)
	}
	in, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	unpacked, err := gzip.NewReader(in)
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for files := tar.NewReader(unpacked); ; {
		header, err := files.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(files)
		got += header.Name + "=" + string(text) + " "
	}
	if got != "a/x.json=1 a/y.json=22 " {
		t.Error(got)
	}
}
