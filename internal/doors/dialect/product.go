package dialect

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/sandbox"
)

// Product is what the dialects of other products have in common. They embed it, which
// gives them most methods of a [Dialect].
type Product struct {
	// ID is the name of the dialect.
	ID string
	// ServerName, Title and Instructions describe the server; see [Server].
	ServerName, Title, Instructions string
	// Table is the table of tools.
	Table []Tool
	// ServerVars and KeyVars are the environment variables in which the product's
	// clients find the address of a server and the key for it. The first that is
	// set counts.
	ServerVars, KeyVars []string
	// Domains are the product's own: a server at or below one of them is not Cove.
	Domains []string
}

// Name implements [Dialect].
func (p *Product) Name() string { return p.ID }

// Tools implements [Dialect].
func (p *Product) Tools() []Tool { return p.Table }

// Server implements [Dialect].
func (p *Product) Server(version string) Server {
	return Server{
		Implementation: &mcp.Implementation{Name: p.ServerName, Title: p.Title, Version: version},
		Instructions:   p.Instructions,
	}
}

// Environment implements [Configured].
func (p *Product) Environment(get func(name string) string) (server, key string) {
	first := func(names []string) (value string) {
		for _, name := range names {
			value = cmp.Or(value, get(name))
		}
		return value
	}
	server, key = first(p.ServerVars), first(p.KeyVars)
	u, err := url.Parse(server)
	for _, domain := range p.Domains {
		if err == nil && strings.HasSuffix("."+strings.ToLower(u.Hostname()), "."+domain) {
			return "", key
		}
	}
	return strings.TrimRight(server, "/"), key
}

// Definitions reads a product's table of tools, in order. The schemas stay as they are
// written. It panics if the table is invalid, which every test of a dialect finds.
func Definitions(table []byte) []*mcp.Tool {
	var list []struct {
		mcp.Tool
		InputSchema json.RawMessage `json:"inputSchema"`
	}
	if err := json.Unmarshal(table, &list); err != nil {
		panic(fmt.Sprintf("table of tools: %v", err))
	}
	defs := make([]*mcp.Tool, 0, len(list))
	for i := range list {
		def := &list[i].Tool
		def.InputSchema = list[i].InputSchema
		defs = append(defs, def)
	}
	return defs
}

// Stamp is a time as most products write it: in UTC, with milliseconds.
func Stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// StampOf is [Stamp], and "" for no time.
func StampOf(t *time.Time) string {
	if t == nil {
		return ""
	}
	return Stamp(*t)
}

// JSON is a value of a dialect's own as JSON, without escapes for HTML. It
// panics if it cannot be encoded.
func JSON(v any, indent string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("encode a result: %v", err))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// ErrorText returns a result that is an error.
func ErrorText(text string, structured any) *mcp.CallToolResult {
	res := Text(text, structured)
	res.IsError = true
	return res
}

// Invalid returns the error for an invalid request.
func Invalid(format string, args ...any) error {
	return sandbox.Errorf(sandbox.CodeInvalid, format, args...)
}

// OneLine shows the control characters of a text escaped.
func OneLine(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) < 0 {
		return s
	}
	q := fmt.Sprintf("%q", s)
	return q[1 : len(q)-1]
}
