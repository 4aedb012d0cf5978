package relay

import (
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/test/logtest"
)

// noFiles leaves the process with n free descriptors until the test returns the others. hold takes
// those that were freed since, for example by earlier tests, and returns their number.
func noFiles(t *testing.T, n int) (giveBack func(), hold func() int) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 512, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	var taken []int
	takeAll := func() int {
		for had := len(taken); ; {
			fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return len(taken) - had
			}
			taken = append(taken, fd)
		}
	}
	takeAll()
	for quiet := 0; quiet < 20; quiet++ { // backends of earlier tests may still be closing theirs
		time.Sleep(time.Millisecond)
		if takeAll() > 0 {
			quiet = 0
		}
	}
	for ; n > 0; n-- {
		unix.Close(taken[0])
		taken = taken[1:]
	}
	giveBack = func() {
		for _, fd := range taken {
			unix.Close(fd)
		}
		taken = nil
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(giveBack)
	return giveBack, takeAll
}

// Clients wait while no descriptor is free, and are served when some are. Meanwhile connections
// continue, the loops do not spin, and the log does not grow.
func TestTCPOutOfFiles(t *testing.T) {
	var log logtest.Buffer
	r := newRelay(t, Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	l := listen(t, r, to(serve(t, echo)))
	open := dial(t, l.Addr())
	roundTrip(t, open)

	giveBack, hold := noFiles(t, 1)
	waiting, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(l.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Close()
	begun := time.Now()
	eventually(t, "the client has been looked at several times", func() bool {
		hold()
		return r.Stats().TCP.OutOfDescriptors > 6
	})
	if took := time.Since(begun); took < acceptPause {
		t.Errorf("the loops looked again and again, without rest, within %v", took)
	}
	for range 100 {
		roundTrip(t, open)
	}
	loops := uint64(len(r.conns.(*conns).loops))
	if n, most := r.Stats().TCP.OutOfDescriptors, loops*uint64(2+time.Since(begun)/acceptPause); n > most {
		t.Errorf("the loops looked %d times in %v, want no more than %d", n, time.Since(begun), most)
	}
	giveBack()
	waiting.SetDeadline(time.Now().Add(timeout))
	roundTrip(t, waiting)
	if text := log.String(); !strings.Contains(text, "ulimit -n") || strings.Count(text, "\n") > 60 {
		t.Errorf("the log says\n%s", text)
	}
}

// A client that is accepted with the last descriptor, which leaves none for its backend, is reset:
// it may try again.
func TestTCPOutOfFilesForBackend(t *testing.T) {
	r := newRelay(t, Config{})
	b := to(serve(t, echo))
	l := listen(t, r, b)
	noFiles(t, 2)
	wantReset(t, l.Addr())
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.dialled) != 0 {
		t.Errorf("the backend was blamed: %v", b.dialled)
	}
}
