package netlab

// TB is the part of testing.TB that a lab uses.
type TB interface {
	Helper()
	Cleanup(func())
	Error(args ...any)
	Fatal(args ...any)
}

// TestLab is a lab that ends with its test. Its errors fail the test.
type TestLab struct {
	*Lab
	t TB
}

// ForTest builds a lab for a test.
func ForTest(t TB, opts Options) *TestLab {
	t.Helper()
	l, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return &TestLab{l, t}
}

// Serve starts a responder on the same port of each of the hosts.
func (l *TestLab) Serve(proto Proto, port uint16, hosts ...string) {
	l.t.Helper()
	for _, host := range hosts {
		if _, err := l.Listen(host, proto, port); err != nil {
			l.t.Fatal(err)
		}
	}
}

// On runs fn in a host, as Do does. It may fail the test.
func (l *TestLab) On(host string, fn func()) {
	l.t.Helper()
	if err := l.Do(host, func() error { fn(); return nil }); err != nil {
		l.t.Fatal(err)
	}
}

// Traffic starts traffic, which the test must Stop.
func (l *TestLab) Traffic(ways ...Way) *CheckedTraffic {
	l.t.Helper()
	traffic, err := l.StartTraffic(ways...)
	if err != nil {
		l.t.Fatal(err)
	}
	return &CheckedTraffic{traffic, l.t}
}

// CheckedTraffic is Traffic that fails its test where it meets a failure.
type CheckedTraffic struct {
	traffic *Traffic
	t       TB
}

// More is [Traffic.More].
func (t *CheckedTraffic) More() {
	t.t.Helper()
	t.check(t.traffic.More())
}

// Open is [Traffic.Open].
func (t *CheckedTraffic) Open() {
	t.t.Helper()
	t.check(t.traffic.Open())
}

// Stop is [Traffic.Stop]. A failure of a way fails the test.
func (t *CheckedTraffic) Stop() {
	t.t.Helper()
	t.check(t.traffic.Stop())
}

func (t *CheckedTraffic) check(err error) {
	t.t.Helper()
	if err != nil {
		t.t.Error(err)
	}
}
