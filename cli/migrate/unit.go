package migrate

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// unit is a unit of systemd.
type unit struct {
	where string
	// starts are the commands of ExecStart as written, without systemd's prefixes.
	starts []string
	// files are those of EnvironmentFile.
	files []string
}

var (
	unitText  = regexp.MustCompile(`(?m)^[ \t]*(?:\[(?:Unit|Service|Install)\][ \t]*\r?$|ExecStart[ \t]*=)`)
	continued = regexp.MustCompile(`\\\r?\n(?:[ \t]*[#;].*\r?\n)*`)
)

// unit reads a unit of systemd. Settings that do not belong to the command line stay in the unit.
func (r *reader) unit(text, where string) error {
	u := unit{where: where}
	var stays []string
	text = continued.ReplaceAllString(text, "\\\n")
	for text != "" {
		var line string
		line, text, _ = strings.Cut(text, "\n")
		for strings.HasSuffix(line, "\\") && text != "" {
			var next string
			next, text, _ = strings.Cut(text, "\n")
			line += "\n" + next
		}
		line = strings.TrimSpace(line)
		if line == "" || strings.ContainsAny(line[:1], "#;[") {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		switch {
		case !ok:
			return fmt.Errorf("the unit has a line without \"=\": %.40q", line)
		case name == "ExecStart" && value == "": // resets the list
			u.starts = nil
		case name == "ExecStart":
			u.starts = append(u.starts, strings.TrimLeft(value, "@-:+!| \t"))
		case name == "EnvironmentFile" && value == "":
			u.files = nil
		case name == "EnvironmentFile":
			u.files = append(u.files, strings.TrimLeft(value, "-"))
		case name == "Environment":
			values := shell{systemd: true}
			all, err := values.commands(value)
			if err != nil {
				return fmt.Errorf("the unit's Environment: %w", err)
			}
			for _, c := range all {
				for _, w := range c.words {
					variable, value, _ := strings.Cut(w, "=")
					if err := r.variable(variable, value, where); err != nil {
						return err
					}
				}
			}
		default:
			stays = append(stays, name+"="+value)
		}
	}
	if len(u.starts) == 0 {
		return errors.New("the unit has no ExecStart")
	}
	if len(stays) > 0 {
		r.ignore(where, strings.Join(stays, "; "), "they stay in the unit",
			"They are settings of systemd, not of the proxy.")
	}
	if r.service != nil {
		return fmt.Errorf("it is a second unit, beside %s: pass one at a time", r.service.where)
	}
	r.service = &u
	return nil
}

// variable stores a variable of an environment file or a unit.
func (r *reader) variable(name, value, where string) error {
	if old, ok := r.vars[name]; ok && old != value && r.varFrom[name] != where {
		return fmt.Errorf("it sets %s, and so does %s with another value: pass the one that applies", name,
			r.varFrom[name])
	}
	if old := r.vars[name]; old != "" && old != value {
		r.add(Change, where, name+"="+old+" has no effect", "A later line sets this variable again.",
			"Remove the line.")
	}
	if !slices.Contains(r.varNames, name) {
		r.varNames = append(r.varNames, name)
	}
	r.vars[name], r.varFrom[name] = value, where
	return nil
}

// startUnit reads the command line of the unit, when all variables are known.
func (r *reader) startUnit() error {
	u := r.service
	at := u.where + ", ExecStart"
	for _, file := range u.files {
		if !slices.ContainsFunc(r.inputs, func(name string) bool { return path.Base(name) == path.Base(file) }) {
			r.add(Change, u.where, "EnvironmentFile="+file+": no input has this name",
				"It may set variables of the command line, and replaces values of Environment.", "Pass it too.")
		}
	}
	s := shell{systemd: true, vars: r.vars, used: r.varUsed}
	var all []command
	for _, start := range u.starts {
		commands, err := s.commands(start)
		if err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		all = append(all, commands...)
	}
	return r.chosen(all, at)
}

// unset returns an error for a word that is a variable whose value the input lacks.
func (r *reader) unset(word string) error {
	hint := "pass the file that sets it too"
	if r.service != nil && len(r.service.files) > 0 {
		hint = "pass its environment file too: " + strings.Join(r.service.files, ", ")
	}
	return fmt.Errorf("%s has %s, whose flags the input lacks: %s", r.Where, word, hint)
}

// variables is called last. Without another command line the variables with flags are the command
// line; all others are reported.
func (r *reader) variables() error {
	if r.Where == "" && len(r.varNames) > 0 {
		var words []string
		from := ""
		s := shell{vars: r.vars, used: r.varUsed}
		for _, name := range r.varNames {
			if !strings.HasPrefix(r.vars[name], "-") || r.varUsed[name] {
				continue
			}
			all, err := s.commands(strings.ReplaceAll(r.vars[name], "\n", " "))
			if err != nil {
				return fmt.Errorf("%s: variable %s: %w", r.varFrom[name], name, err)
			}
			r.varUsed[name], from = true, r.varFrom[name]
			for _, c := range all {
				words = append(words, c.words...)
				r.redirected(c, from)
			}
		}
		if len(words) > 0 {
			if err := r.arguments(words, from); err != nil {
				return fmt.Errorf("%s: %w", from, err)
			}
		}
	}
	for _, name := range r.varNames {
		if !r.varUsed[name] {
			r.unread(r.varFrom[name], assignment{name: name, value: r.vars[name]})
		}
	}
	return nil
}

// unread reports a variable that the command line does not have.
func (r *reader) unread(where string, a assignment) {
	r.add(Change, where, a.name+"="+a.value+" is not used",
		"No command line of the input names this variable, and its value has no flags.",
		"Pass the unit or script that names it, too; the proxy itself does not read it.")
}
