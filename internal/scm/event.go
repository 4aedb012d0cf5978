package scm

import (
	"encoding/json"
	"io"
	"strings"
)

// EventLog is the Windows event log. An event's number is its kind.
type EventLog interface {
	Info(id uint32, text string) error
	Warning(id uint32, text string) error
	Error(id uint32, text string) error
}

// The numbers of events: EventCreate.exe has the texts of 1 to 1000.
const (
	infoEvent    = 1
	warningEvent = 2
	errorEvent   = 3
)

// longestEvent limits the characters of a text: the event log refuses more than 31,839 of UTF-16.
const longestEvent = 15_000

// NewWriter returns a writer that makes an event of each write. It replaces the stderr of a
// service, for log lines and for errors before the log exists.
func NewWriter(l EventLog) io.Writer { return &writer{l} }

type writer struct{ log EventLog }

func (w *writer) Write(p []byte) (int, error) {
	text := strings.ReplaceAll(strings.ToValidUTF8(strings.TrimSpace(string(p)), "?"), "\x00", "?")
	if len(text) > longestEvent {
		text = strings.ToValidUTF8(text[:longestEvent], "") + " …"
	}
	var err error
	switch severity(text) {
	case warningEvent:
		err = w.log.Warning(warningEvent, text)
	case errorEvent:
		err = w.log.Error(errorEvent, text)
	default:
		err = w.log.Info(infoEvent, text)
	}
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// severity returns the severity of a log line in any format of package logging. Any other line is
// an error: programs print it before they end.
func severity(line string) uint32 {
	switch {
	case strings.HasPrefix(line, "kube-proxy: warning: "), classic(line, 'W'):
		return warningEvent
	case classic(line, 'I'):
		return infoEvent
	case strings.HasPrefix(line, `{"ts":`):
		return jsonSeverity(line)
	}
	return errorEvent
}

func jsonSeverity(line string) uint32 {
	var l struct{ Level string }
	if err := json.Unmarshal([]byte(line), &l); err != nil { // cut off
		return warningEvent
	}
	switch l.Level {
	case "":
		return infoEvent
	case "warning":
		return warningEvent
	}
	return errorEvent
}

// classic reports whether the line has the classic header, of that severity: Immdd.
func classic(line string, severity byte) bool {
	if len(line) < 6 || line[0] != severity || line[5] != ' ' {
		return false
	}
	for _, c := range line[1:5] {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}
