package mcpserver

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// unknownMethod answers a request for a method that the server does not have with the
// error of JSON-RPC. In revisions before 2026-07-28 the SDK answers with HTTP 400 and a
// line of text, which clients take for a broken transport: they close the session
// instead of doing without the method. Only the SDK knows which methods there are.
type unknownMethod struct {
	http.ResponseWriter
	id     json.RawMessage // absent: a notification
	method string

	caught bool
	text   bytes.Buffer
}

// maxRefusal bounds the buffered answer of the SDK, which contains the method's name.
const maxRefusal = 64 << 10

// expectUnknown returns a writer for the answer to a body, and a function to call when
// the answer is complete.
func expectUnknown(w http.ResponseWriter, body []byte) (http.ResponseWriter, func()) {
	var msg struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
	}
	if json.Unmarshal(body, &msg) != nil || msg.Method == "" || len(msg.Method) > maxRefusal/8 || string(msg.ID) == "null" {
		return w, func() {}
	}
	u := &unknownMethod{ResponseWriter: w, id: msg.ID, method: msg.Method}
	return u, u.answer
}

// Unwrap is for [http.ResponseController].
func (u *unknownMethod) Unwrap() http.ResponseWriter { return u.ResponseWriter }

// WriteHeader holds back a refusal in plain text.
func (u *unknownMethod) WriteHeader(status int) {
	if u.caught {
		return
	}
	u.caught = status == http.StatusBadRequest && strings.HasPrefix(u.Header().Get("Content-Type"), "text/plain")
	if !u.caught {
		u.ResponseWriter.WriteHeader(status)
	}
}

func (u *unknownMethod) Write(p []byte) (int, error) {
	if !u.caught {
		return u.ResponseWriter.Write(p)
	}
	u.text.Write(p[:min(len(p), maxRefusal-u.text.Len())])
	return len(p), nil
}

// answer writes the buffered answer: as an error of JSON-RPC if the method is unknown,
// and unchanged otherwise.
func (u *unknownMethod) answer() {
	if !u.caught {
		return
	}
	h := u.Header()
	if !strings.HasSuffix(strings.TrimSpace(u.text.String()), ": "+strconv.Quote(u.method)+" unsupported") {
		u.ResponseWriter.WriteHeader(http.StatusBadRequest)
		_, _ = u.ResponseWriter.Write(u.text.Bytes()) // the client may be gone
		return
	}
	h.Del("X-Content-Type-Options")
	h.Del("Content-Length")
	if len(u.id) == 0 { // nobody waits for an answer
		h.Del("Content-Type")
		u.ResponseWriter.WriteHeader(http.StatusAccepted)
		return
	}
	h.Set("Content-Type", "application/json")
	u.ResponseWriter.WriteHeader(http.StatusOK)
	_ = json.NewEncoder(u.ResponseWriter).Encode(map[string]any{
		"jsonrpc": "2.0", "id": u.id,
		"error": map[string]any{"code": jsonrpc.CodeMethodNotFound, "message": "method not found: " + strconv.Quote(u.method) + "; this server has no such method"},
	})
}
