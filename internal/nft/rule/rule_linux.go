package rule

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/wire"
)

// Rule is a rule of a chain. Its comment ends in a digest of its content, by which a later process
// recognises that the kernel's rule is unchanged.
type Rule struct {
	Comment     string
	Expressions []byte // NFTA_RULE_EXPRESSIONS

	statements []Statement
}

// New returns a rule made of statements.
func (ip IP) New(comment string, statements ...Statement) Rule {
	e := wire.Encoder{Encoder: netlink.Encoder{B: make([]byte, 0, 1024)}}
	for _, s := range statements {
		for _, x := range s.exprs {
			at := e.Nest(unix.NFTA_LIST_ELEM)
			appendExpression(&e, ip.Proto, x)
			e.EndNest(at)
		}
	}
	sum := sha256.Sum256(e.B)
	return Rule{strings.TrimSpace(comment + " [" + hex.EncodeToString(sum[:4]) + "]"), e.B, statements}
}

func appendExpression(e *wire.Encoder, proto byte, x expr.Any) {
	if x, ok := x.(*directedCt); ok {
		x.encode(e)
		return
	}
	b, err := expr.Marshal(proto, x)
	if err != nil {
		panic(fmt.Sprintf("internal/nft/rule: cannot encode %T: %v", x, err)) // a mistake in this package
	}
	e.B = append(e.B, b...)
}

// Text returns the rule in the language of nft(8).
func (r Rule) Text() string {
	var all []string
	for _, s := range r.statements {
		if s.text != "" {
			all = append(all, s.text)
		}
	}
	return fmt.Sprintf("%s comment %q", strings.Join(all, " "), r.Comment)
}

// Chain is a chain with its rules.
type Chain struct {
	Name  string
	Hook  wire.Hook // zero for a chain that is only jumped to
	Rules []Rule
}

// IsBase reports whether packets meet the chain at a hook.
func (c Chain) IsBase() bool { return c.Hook != wire.Hook{} }

// Digest identifies the chain's rules.
func (c Chain) Digest() string {
	var b strings.Builder
	for _, r := range c.Rules {
		b.WriteString(r.Comment + "\n")
	}
	return b.String()
}

// AddTo appends the rules to the chain in a transaction.
func (c Chain) AddTo(t *wire.Transaction) {
	for _, r := range c.Rules {
		t.AddRule(c.Name, r.Expressions, r.Comment)
	}
}
