package mcpserver

import (
	"net/http"
	"testing"
)

// A request for an unknown method gets an error of JSON-RPC, and the session continues:
// clients would take the SDK's own answer for a broken transport. The test fails if the
// SDK changes its words.
func TestUnknownMethod(t *testing.T) {
	w := serve(t, Config{Service: newFake()})
	for _, path := range []string{"/mcp", "/mcp/microsandbox"} { // with streams, and without
		headers := []string{headerProtocol, "2025-11-25"}
		if path == "/mcp" {
			headers = w.session(path)
		}
		for _, body := range []string{
			`{"jsonrpc":"2.0","id":7,"method":"x/y"}`, `{"jsonrpc":"2.0","id":7,"method":"x/\"y\" unsupported\n","params":{}}`, `{"jsonrpc":"2.0","id":7,"method":"tasks/list","params":null}`,
		} {
			status, m := w.post(path, body, headers...)
			if status != http.StatusOK || m.Error == nil || m.Error.Code != -32601 || string(m.ID) != "7" {
				t.Errorf("%s %s: %d %+v", path, body, status, m)
			}
		}
		if status, m := w.post(path, `{"jsonrpc":"2.0","method":"notifications/x"}`, headers...); status != http.StatusAccepted || m.Error != nil {
			t.Errorf("%s: a notification: %d %+v", path, status, m)
		}
		// Other errors are reported as before.
		for _, body := range []string{`{"jsonrpc":"2.0","id":7,"method":"notifications/initialized"}`, `{"jsonrpc":"2.0","method":"tools/list"}`} {
			if status, m := w.post(path, body, headers...); status != http.StatusBadRequest || m.Error != nil || m.Method == "" {
				t.Errorf("%s %s: %d %+v", path, body, status, m)
			}
		}
		if status, m := w.post(path, `{"jsonrpc":"2.0","id":8,"method":"tools/list"}`, headers...); status != http.StatusOK || len(toolNames(t, m)) == 0 {
			t.Errorf("%s: afterwards: %d %+v", path, status, m)
		}
	}
	body, headers := newEra(1, "x/y", "", "")
	if status, m := w.post("/mcp", body, headers...); status != http.StatusNotFound || m.Error == nil || m.Error.Code != -32601 {
		t.Errorf("in the new era: %d %+v", status, m)
	}
}
