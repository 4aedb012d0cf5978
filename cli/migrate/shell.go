package migrate

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// shell evaluates the text of a shell as far as command lines need it: words, quotes, variables,
// lists of commands and redirections. What only a running shell knows stays as it is written, such
// as $(hostname).
type shell struct {
	// vars are the values of variables, and used those that were read.
	vars map[string]string
	used map[string]bool
	// assigned are the assignments of the text, in order.
	assigned []assignment
	// systemd selects the rules of ExecStart: no operators, $NAME only as a whole word, and ${NAME}
	// is one word.
	systemd bool
}

// command is one command with its redirections.
type command struct {
	words     []string
	redirects []string
}

func (c command) String() string { return strings.Join(append(c.words, c.redirects...), " ") }

// commands returns the commands of a text, without those that only assign variables.
func (s *shell) commands(text string) ([]command, error) {
	l := lexer{shell: s, text: strings.ReplaceAll(text, "\r\n", "\n")}
	for l.at < len(l.text) {
		if err := l.next(); err != nil {
			return nil, err
		}
	}
	l.endCommand()
	return l.all, nil
}

// lexer is the state of one text.
type lexer struct {
	*shell
	text string
	at   int

	all     []command
	now     command
	word    strings.Builder
	in      bool // in a word, which may be empty: ""
	quoted  bool // the word has quotes
	operand bool // the next word is the file of a redirection
}

func (l *lexer) add(s string) {
	l.word.WriteString(s)
	l.in = true
}

func (l *lexer) endWord() {
	if !l.in {
		return
	}
	w := l.word.String()
	l.word.Reset()
	switch name, value, assigns := strings.Cut(w, "="); {
	case l.operand:
		l.now.redirects[len(l.now.redirects)-1] += w
	case !l.systemd && len(l.now.words) == 0 && assigns && variable.MatchString(name):
		l.vars[name] = value
		l.assigned = append(l.assigned, assignment{name: name, value: value})
	case !l.systemd && len(l.now.words) == 0 && !l.quoted && (w == "export" || w == "{" || w == "}"):
	default:
		l.now.words = append(l.now.words, w)
	}
	l.in, l.quoted, l.operand = false, false, false
}

func (l *lexer) endCommand() {
	l.endWord()
	if len(l.now.words)+len(l.now.redirects) > 0 {
		l.all = append(l.all, l.now)
	}
	l.now = command{}
}

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// next reads one character, quoted text, variable or operator.
func (l *lexer) next() error {
	c := l.text[l.at]
	switch {
	case c == '\\':
		l.escape()
	case c == '\'':
		end := strings.IndexByte(l.text[l.at+1:], '\'')
		if end < 0 {
			return l.unended("'")
		}
		l.add(l.text[l.at+1 : l.at+1+end])
		l.quoted = true
		l.at += end + 2
	case c == '"':
		return l.double()
	case c == '$':
		return l.expand(false)
	case c == '`':
		return l.backticks()
	case c == ' ' || c == '\t':
		l.endWord()
		l.at++
	case c == '\n':
		l.endCommand()
		l.at++
	case c == '#' && !l.in && !l.systemd:
		end := strings.IndexByte(l.text[l.at:], '\n')
		if end < 0 {
			end = len(l.text) - l.at
		}
		l.at += end
	case !l.systemd && strings.IndexByte(";|&()", c) >= 0:
		l.endCommand()
		l.at++
	case !l.systemd && (c == '>' || c == '<'):
		l.redirect()
	default:
		l.add(l.text[l.at : l.at+1])
		l.at++
	}
	return nil
}

func (l *lexer) unended(quote string) error {
	return fmt.Errorf("a %s does not end: %.40q", quote, l.text[l.at:])
}

// escape reads a backslash and the character after it. At the end of a line they continue it.
func (l *lexer) escape() {
	l.at++
	switch {
	case l.at == len(l.text):
	case l.text[l.at] != '\n':
		l.add(l.text[l.at : l.at+1])
	case l.systemd:
		l.endWord()
	}
	l.at = min(l.at+1, len(l.text))
}

// double reads text in double quotes.
func (l *lexer) double() error {
	l.in, l.quoted = true, true
	start := l.at
	for l.at++; l.at < len(l.text); {
		switch c := l.text[l.at]; {
		case c == '"':
			l.at++
			return nil
		case c == '\\' && l.at+1 < len(l.text) && strings.IndexByte("$`\"\\\n", l.text[l.at+1]) >= 0:
			l.escape()
		case c == '$':
			if err := l.expand(true); err != nil {
				return err
			}
		default:
			l.add(l.text[l.at : l.at+1])
			l.at++
		}
	}
	l.at = start
	return l.unended(`"`)
}

// reference matches the variable at the start of a text.
var reference = regexp.MustCompile(`^\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})`)

// expand reads a variable. A value outside quotes is split into words.
func (l *lexer) expand(inQuotes bool) error {
	rest := l.text[l.at:]
	m := reference.FindStringSubmatch(rest)
	switch {
	case l.systemd && strings.HasPrefix(rest, "$$"):
		l.add("$")
		l.at += 2
		return nil
	case strings.HasPrefix(rest, "$("):
		return l.verbatim("$(", "(", ")")
	case m == nil && strings.HasPrefix(rest, "${"):
		return l.verbatim("${", "{", "}")
	case m == nil:
		l.add("$")
		l.at++
		return nil
	}
	l.at += len(m[0])
	name, bare := m[1]+m[2], m[1] != ""
	value, known := l.vars[name]
	whole := !l.in && (l.at == len(l.text) || strings.IndexByte(" \t\n", l.text[l.at]) >= 0)
	if !known || l.systemd && bare && !whole {
		l.add(m[0])
		return nil
	}
	l.read(name)
	if inQuotes || l.systemd && !bare {
		l.add(value)
		return nil
	}
	if l.systemd { // the value has quotes of its own
		value := shell{systemd: true, vars: map[string]string{}, used: map[string]bool{}}
		all, err := value.commands(strings.ReplaceAll(l.vars[name], "\n", " "))
		if err != nil {
			return fmt.Errorf("variable %s: %w", name, err)
		}
		for _, c := range all {
			l.now.words = append(l.now.words, c.words...)
		}
		return nil
	}
	for i, part := range strings.FieldsFunc(value, blank) {
		if i > 0 || blank(rune(value[0])) {
			l.endWord()
		}
		l.add(part)
	}
	if value != "" && blank(rune(value[len(value)-1])) {
		l.endWord()
	}
	return nil
}

// read notes that the present value of a variable is used.
func (s *shell) read(name string) {
	s.used[name] = true
	for i, a := range slices.Backward(s.assigned) {
		if a.name == name {
			s.assigned[i].read = true
			return
		}
	}
}

func blank(r rune) bool { return r == ' ' || r == '\t' || r == '\n' }

// verbatim reads what only a running shell, or Kubernetes, replaces: $(…) and ${…}.
func (l *lexer) verbatim(start, open, end string) error {
	depth := 1
	for i := l.at + len(start); i < len(l.text); i++ {
		switch l.text[i : i+1] {
		case open:
			depth++
		case end:
			depth--
		}
		if depth == 0 {
			l.add(l.text[l.at : i+1])
			l.at = i + 1
			return nil
		}
	}
	return l.unended(start)
}

func (l *lexer) backticks() error {
	end := strings.IndexByte(l.text[l.at+1:], '`')
	if end < 0 {
		return l.unended("`")
	}
	l.add(l.text[l.at : l.at+end+2])
	l.at += end + 2
	return nil
}

// redirect reads >, >>, <, >& with the number before it; the file is the next word.
func (l *lexer) redirect() {
	number := ""
	if w := l.word.String(); l.in && strings.Trim(w, "0123456789") == "" {
		number = w
		l.word.Reset()
		l.in = false
	}
	l.endWord()
	start := l.at
	for l.at < len(l.text) && strings.IndexByte("<>&|", l.text[l.at]) >= 0 {
		l.at++
	}
	l.now.redirects = append(l.now.redirects, number+l.text[start:l.at])
	l.operand = true
}

// assignment is a variable with its value.
type assignment struct {
	name, value string
	read        bool
}

var (
	assigned  = regexp.MustCompile(`^(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=`)
	errNoFile = errors.New("not an environment file")
)

// environment reads the file of a systemd unit's EnvironmentFile, or one that a shell sources:
// NAME=value on each line. A value may have quotes, and continue on the next lines. The error is
// errNoFile if a line assigns no variable.
func environment(text string) (all []assignment, err error) {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	for text != "" {
		line, rest, _ := strings.Cut(text, "\n")
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' || line[0] == ';' {
			text = rest
			continue
		}
		text = strings.TrimLeft(text, " \t")
		m := assigned.FindStringSubmatch(text)
		if m == nil {
			return nil, errNoFile
		}
		value, after, err := assignedValue(text[len(m[0]):])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m[1], err)
		}
		all = append(all, assignment{name: m[1], value: value})
		text = after
	}
	if len(all) == 0 {
		return nil, errNoFile
	}
	return all, nil
}

// assignedValue reads a value up to the end of its line, and returns the text after it. Quotes
// around the whole value are removed; others belong to its words.
func assignedValue(text string) (value, after string, err error) {
	var b strings.Builder
	var quote byte
	outer := false // the quote is around the value
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && quote != '\'' && i+1 < len(text):
			i++
			if text[i] != '\n' {
				if !outer || strings.IndexByte("$`\"\\", text[i]) < 0 {
					b.WriteByte(c)
				}
				b.WriteByte(text[i])
			}
		case quote == 0 && (c == '"' || c == '\''):
			quote, outer = c, strings.TrimSpace(b.String()) == ""
			if !outer {
				b.WriteByte(c)
			}
		case c == quote:
			if !outer {
				b.WriteByte(c)
			}
			quote, outer = 0, false
		case quote == 0 && c == '\n':
			return strings.TrimSpace(b.String()), text[i+1:], nil
		case quote == 0 && c == '#' && i > 0 && blank(rune(text[i-1])):
			_, after, _ = strings.Cut(text[i:], "\n")
			return strings.TrimSpace(b.String()), after, nil
		default:
			b.WriteByte(c)
		}
	}
	if quote != 0 {
		return "", "", fmt.Errorf("a %c does not end", quote)
	}
	return strings.TrimSpace(b.String()), "", nil
}
