package dialect

import (
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/sandbox"
)

// resultRoom is what a result needs in addition to its content, in bytes.
const resultRoom = 64 << 10

// MaxBytes returns how many bytes of content a result can have, once and in base64: at
// most limit, and fewer if the client does not accept messages that long.
func (c *Call) MaxBytes(limit int64) int64 {
	if c.MaxResult == 0 {
		return limit
	}
	return min(limit, int64(c.MaxResult-resultRoom)/4*3)
}

// fits reports whether a result has at most limit bytes as JSON. It returns true for a
// result that cannot be encoded, which the server finds out itself.
func fits(res *mcp.CallToolResult, limit int) bool {
	data, err := json.Marshal(res)
	return err != nil || len(data) <= limit
}

func tooLarge(limit int) error {
	return sandbox.Errorf(sandbox.CodeTooLarge,
		"the result is over %.1f MiB, the most that MCP clients take in one message from a server that they started; "+
			"the call has been carried out: ask for less of its output, or write the output to a file and read that in parts", float64(limit)/(1<<20))
}
