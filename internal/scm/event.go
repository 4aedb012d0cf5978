package scm

import (
	"encoding/json"
	"io"
	"strings"
)

// EventLog is where a service tells people what they must know: the Windows event log. The number of an event is its kind.
type EventLog interface {
	Info(id uint32, text string) error
	Warning(id uint32, text string) error
	Error(id uint32, text string) error
}

// The numbers of events: EventCreate.exe, which has the texts of those whose program brings none, knows 1 to 1000.
const (
	infoEvent    = 1
	warningEvent = 2
	errorEvent   = 3
)

// longestEvent is how many characters of a text are told: the event log refuses more than 31,839 of UTF-16.
const longestEvent = 15_000

// NewWriter returns a writer that makes an event of what is written at once. It stands for the stderr of a service, which has
// none: lines of the log that go there, and what a program says before it has a log.
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

// severity tells by a line, in any of the formats of package logging, what it is. What is no line of the log is an error:
// programs say it before they end.
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
