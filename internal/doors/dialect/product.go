package dialect

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/sandbox"
)

// Definitions reads a product's table of tools, in its order. The schemas stay
// as they are written. It panics if the table is no such, which every test of a
// dialect finds.
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

// ServerAt returns the server that a product's clients are configured for: the
// first of these addresses that is not empty. An address of the product's own
// service, which is at a domain or below it, is not one of ours, and left out.
func ServerAt(addresses []string, domains ...string) string {
	for _, address := range addresses {
		if address == "" {
			continue
		}
		u, err := url.Parse(address)
		for _, domain := range domains {
			if err == nil && strings.HasSuffix("."+strings.ToLower(u.Hostname()), "."+domain) {
				return ""
			}
		}
		return address
	}
	return ""
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

// Invalid is the error of a request that is wrong.
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
