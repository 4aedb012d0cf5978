package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mutant is one change of a file.
type mutant struct {
	path   string // of the file
	line   int
	what   string // such as "< becomes <="
	code   string // the line before the change, without white space around it
	source []byte // the changed file
}

// text names the mutant, with the path below a folder.
func (m *mutant) text(root string) string {
	path, err := filepath.Rel(root, m.path)
	if err != nil {
		path = m.path
	}
	return fmt.Sprintf("%s:%d: %s: %s", filepath.ToSlash(path), m.line, m.what, m.code)
}

// known reports whether equivalent.txt has the mutant: a line "path: what: code", whatever the
// number of the line is now.
func (m *mutant) known(root string) bool {
	_, rest, _ := strings.Cut(m.text(root), fmt.Sprintf(":%d: ", m.line))
	path, _, _ := strings.Cut(m.text(root), ":")
	return slices.Contains(strings.Split(equivalent, "\n"), path+": "+rest)
}

// opposites are the operators that take each other's place.
var opposites = map[token.Token]token.Token{
	token.EQL: token.NEQ, token.NEQ: token.EQL,
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.LAND: token.LOR, token.LOR: token.LAND,
	token.ADD: token.SUB, token.SUB: token.ADD,
}

// mutantsOf returns all changes of a file, in its order.
func mutantsOf(path string) ([]mutant, error) {
	source, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	if ast.IsGenerated(file) {
		return nil, nil
	}
	v := &visitor{path: path, source: source, fset: fset}
	ast.Inspect(file, v.visit)
	return v.found, nil
}

type visitor struct {
	path   string
	source []byte
	fset   *token.FileSet
	found  []mutant
}

// visit adds the changes of a node. It leaves out declarations, which tests compare with
// themselves, and what is written for people.
func (v *visitor) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GenDecl:
		return false
	case *ast.FuncDecl:
		return n.Name.Name != "String" && n.Name.Name != "Error"
	case *ast.CallExpr:
		return !speaks(n)
	case *ast.BlockStmt:
		for _, s := range n.List {
			v.statement(s)
		}
	case *ast.CaseClause:
		for _, s := range n.Body {
			v.statement(s)
		}
	case *ast.CommClause:
		for _, s := range n.Body {
			v.statement(s)
		}
	case *ast.IfStmt:
		if n.Else == nil && onlySpeaks(n.Body) {
			return false
		}
	case *ast.BinaryExpr:
		if to, ok := opposites[n.Op]; ok && !isText(n) && !isInstant(n) {
			v.add(n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), to.String(), n.Op.String()+" becomes "+to.String())
		}
	case *ast.Ident:
		if to := map[string]string{"true": "false", "false": "true"}[n.Name]; to != "" {
			v.add(n.Pos(), n.End(), to, n.Name+" becomes "+to)
		}
	}
	return true
}

// statement adds the deletion of a statement that only has an effect.
func (v *visitor) statement(s ast.Stmt) {
	switch s := s.(type) {
	case *ast.AssignStmt:
		if s.Tok == token.DEFINE || len(s.Lhs) == 1 && isBlank(s.Lhs[0]) {
			return
		}
	case *ast.IncDecStmt:
	case *ast.ExprStmt:
		call, ok := s.X.(*ast.CallExpr)
		if !ok || speaks(call) {
			return
		}
	default:
		return
	}
	// Variables and imports that are used nowhere else are no error of the change.
	v.add(s.Pos(), s.End(), "", "deleted")
}

func isBlank(e ast.Expr) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == "_"
}

// isText reports whether an operation joins strings.
func isText(n *ast.BinaryExpr) bool {
	text := false
	ast.Inspect(n, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		text = text || ok && lit.Kind == token.STRING
		return !text
	})
	return text && n.Op == token.ADD
}

// isInstant reports whether an operation compares a duration that has just been measured with a
// limit: whether the limit itself belongs to it, no test can see.
func isInstant(n *ast.BinaryExpr) bool {
	if n.Op != token.LSS && n.Op != token.LEQ && n.Op != token.GTR && n.Op != token.GEQ {
		return false
	}
	measured := func(e ast.Expr) bool {
		call, ok := e.(*ast.CallExpr)
		if !ok {
			return false
		}
		f, ok := call.Fun.(*ast.SelectorExpr)
		return ok && (f.Sel.Name == "Sub" || f.Sel.Name == "Since" || f.Sel.Name == "Until")
	}
	return measured(n.X) || measured(n.Y)
}

// onlySpeaks reports whether a block does nothing but speak.
func onlySpeaks(b *ast.BlockStmt) bool {
	return len(b.List) > 0 && !slices.ContainsFunc(b.List, func(s ast.Stmt) bool {
		e, ok := s.(*ast.ExprStmt)
		if !ok {
			return true
		}
		call, ok := e.X.(*ast.CallExpr)
		return !ok || !speaks(call)
	})
}

// speaks reports whether a call writes a log line or makes an error or a text, for people.
func speaks(call *ast.CallExpr) bool {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		id, ok := call.Fun.(*ast.Ident)
		return ok && id.Name == "panic"
	}
	switch x := f.X.(type) {
	case *ast.SelectorExpr:
		return strings.EqualFold(x.Sel.Name, "log")
	case *ast.Ident:
		return x.Name == "log" || x.Name == "slog" || x.Name == "fmt" || x.Name == "errors" && f.Sel.Name == "New"
	}
	return false
}

// add adds the mutant that has text from one position to another.
func (v *visitor) add(from, to token.Pos, text, what string) {
	a, b := v.fset.Position(from), v.fset.Position(to)
	begin := strings.LastIndexByte(string(v.source[:a.Offset]), '\n') + 1
	line, _, _ := strings.Cut(string(v.source[begin:]), "\n")
	v.found = append(v.found, mutant{path: v.path, line: a.Line, what: what, code: strings.TrimSpace(line),
		source: slices.Concat(v.source[:a.Offset], []byte(text), v.source[b.Offset:])})
}
