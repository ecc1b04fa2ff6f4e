package server_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/doors/dialect/microsandbox/cloud/wire"
	"github.com/cove-sh/cove/sandbox"
)

// msbClient asks the door for microsandbox's clients of a daemon.
type msbClient struct{ sdkClient }

func (c *msbClient) api(method, path, body string) sdkAnswer {
	c.t.Helper()
	return c.send(method, "/microsandbox"+path, body, "Authorization", "Bearer "+c.key)
}

type msbSandbox struct {
	ID, Name, Status string
}

func (c *msbClient) create(name string) msbSandbox {
	c.t.Helper()
	a := c.api("POST", "/v1/sandboxes?start=true&wait_for=running&wait_timeout=90", `{"name":"`+name+`","image":{"type":"oci","reference":"microsandbox/python"},"network":{"enabled":true,"strict":false},"lifecycle":{"ephemeral":true}}`)
	if a.status != http.StatusOK {
		c.t.Fatalf("create: %d %s", a.status, a.text)
	}
	var s msbSandbox
	a.decode(c.t, &s)
	return s
}

func asMicrosandbox(c sdkClient) *msbClient { return &msbClient{c} }

// dial opens the WebSocket of a sandbox; the error is of the upgrade.
func (c *msbClient) dial(id string) (*websocket.Conn, error) {
	ws, resp, err := websocket.Dial(c.t.Context(), "ws://"+c.tcp+"/microsandbox/v1/sandboxes/"+id+"/agent", &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + c.key}}})
	if resp != nil && resp.Body != nil {
		_ = resp.Body.Close()
	}
	return ws, err
}

// ask sends a frame and returns the answer's type.
func ask(ctx context.Context, t *testing.T, ws *websocket.Conn, id uint32, flags uint8, kind string, payload any) wire.Frame {
	t.Helper()
	data, err := wire.Append(nil, id, flags, kind, payload)
	if err != nil {
		t.Fatal(err)
	}
	if err := ws.Write(ctx, websocket.MessageBinary, data); err != nil {
		t.Fatal(err)
	}
	return next(ctx, t, ws)
}

func next(ctx context.Context, t *testing.T, ws *websocket.Conn) wire.Frame {
	t.Helper()
	_, data, err := ws.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	f, err := wire.Read(strings.NewReader(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// All routes ask for their scopes and know no other team's things.
func TestMicrosandboxScopes(t *testing.T) {
	r, clients := sdkServer(t, nil, asMicrosandbox, "red", "blue")
	ours := clients[0].create("box")
	reader := asMicrosandbox(sdkKey(t, r, "red", sandbox.ScopeSandboxesRead))
	for _, c := range []struct {
		route, body string
		reads, blue int // what a reader and another team get
	}{
		{"GET /v1/sandboxes", "", 200, 200},
		{"GET /v1/sandboxes/ID", "", 200, 404},
		{"GET /v1/sandboxes/by-name/box", "", 200, 404},
		{"GET /v1/sandboxes/ID/agent", "", 403, 404},
		{"POST /v1/sandboxes/by-name/box/start", "{}", 403, 404},
		{"POST /v1/sandboxes/by-name/box/stop", "{}", 403, 404},
		{"POST /v1/sandboxes/ID/stop", "{}", 403, 404},
		{"DELETE /v1/sandboxes/by-name/box", "", 403, 404},
		{"DELETE /v1/sandboxes/ID", "", 403, 404},
		{"POST /v1/sandboxes?start=true", `{"name":"x","image":{"type":"oci","reference":"microsandbox/python"}}`, 403, 200},
		{"POST /v1/sandboxes?start=true", `{"name":"y","image":{"type":"oci","reference":"some/image:1"}}`, 403, 200},
		{"GET /v1/volumes", "", 200, 200},
		{"POST /v1/volumes", `{"name":"v","labels":{}}`, 403, 200},
		{"DELETE /v1/volumes/vol-x", "", 403, 404},
	} {
		method, path, _ := strings.Cut(c.route, " ")
		path = strings.ReplaceAll(path, "ID", ours.ID)
		if a := reader.api(method, path, c.body); a.status != c.reads {
			t.Errorf("a reader: %s: %d %s", c.route, a.status, a.text)
		}
		if a := clients[1].api(method, path, c.body); a.status != c.blue || c.blue == 200 && strings.Contains(a.text, ours.ID) {
			t.Errorf("another team: %s: %d %s", c.route, a.status, a.text)
		}
	}
	revokeKeys(t, r, "red")
	if a := clients[0].api("GET", "/v1/sandboxes", ""); a.status != http.StatusUnauthorized {
		t.Errorf("a revoked key: %d", a.status)
	}
}

// Errors are in the product's form, and what browsers send does not come in.
func TestMicrosandboxRefuses(t *testing.T) {
	_, clients := sdkServer(t, nil, asMicrosandbox, "red")
	c := clients[0]
	ours := c.create("box")
	for name, ask := range map[string]struct {
		a      sdkAnswer
		status int
		says   string
	}{
		"no key":            {c.send("GET", "/microsandbox/v1/sandboxes", ""), 401, "invalid_api_key"},
		"no sandbox":        {c.api("GET", "/v1/sandboxes/by-name/none", ""), 404, "sandbox_not_found"},
		"no volume":         {c.api("DELETE", "/v1/volumes/none", ""), 404, "volume_not_found"},
		"the name is used":  {c.api("POST", "/v1/sandboxes", `{"name":"box","image":{"type":"oci","reference":"microsandbox/python"}}`), 409, "name_already_exists"},
		"a route":           {c.api("GET", "/v1/quotas", ""), 404, "GET /v1/quotas"},
		"a method":          {c.api("PUT", "/v1/volumes", "{}"), 405, "GET, POST"},
		"an encoded climb":  {c.api("GET", "/v1/sandboxes/%2e%2e/volumes", ""), 404, "does not serve"},
		"a slash in a name": {c.api("GET", "/v1/sandboxes/by-name/..%2Fvolumes", ""), 404, "sandbox_not_found"},
		"a field":           {c.api("POST", "/v1/sandboxes", `{"name":"x","image":{"type":"oci","reference":"a"},"new":1}`), 400, "invalid_sandbox_config"},
		"a wait":            {c.api("POST", "/v1/sandboxes?wait_for=ready", `{}`), 400, "wait_for"},
		"a cursor":          {c.api("GET", "/v1/sandboxes?cursor=%00", ""), 400, "cursor"},
		"files of nothing":  {c.api("GET", "/v1/volumes/vol-x/files", ""), 404, "volume_not_found"},
		"a page's request":  {c.send("POST", "/microsandbox/v1/sandboxes", "{}", "Origin", "http://evil.example", "Authorization", "Bearer "+c.key), 403, ""},
		"no upgrade":        {c.api("GET", "/v1/sandboxes/"+ours.ID+"/agent", ""), 426, ""},
	} {
		if ask.a.status != ask.status || !strings.Contains(ask.a.text, ask.says) {
			t.Errorf("%s: %d %s, want %d that says %q", name, ask.a.status, ask.a.text, ask.status, ask.says)
		}
		var body struct {
			Error *struct{ Code, Message string } `json:"error"`
		}
		if ask.status >= 400 && ask.status != 403 && ask.status != 426 && (json.Unmarshal([]byte(ask.a.text), &body) != nil || body.Error == nil || body.Error.Code == "" || body.Error.Message == "") {
			t.Errorf("%s: %s is no error of the product's", name, ask.a.text)
		}
	}
}

// A sandbox is the same through every other door, and one that is ephemeral is gone when it
// stops. The engine of these tests does not pause.
func TestMicrosandboxLife(t *testing.T) {
	r, clients := sdkServer(t, nil, asMicrosandbox, sandbox.LocalCaller().Team)
	c := clients[0]
	ours := c.create("box")
	if box, err := r.client(t).Get(t.Context(), ours.ID); err != nil || box.Name != "box" || box.State != sandbox.StateRunning {
		t.Fatalf("by REST it is %+v, %v", box, err)
	}
	made, err := r.client(t).Create(t.Context(), sandbox.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if a := c.api("GET", "/v1/sandboxes/by-name/"+made.ID, ""); a.status != http.StatusOK || !strings.Contains(a.text, `"status":"running"`) {
		t.Errorf("one that REST has made without a name: %d %s", a.status, a.text)
	}
	if a := c.api("POST", "/v1/sandboxes/by-name/box/start?wait_for=running&wait_timeout=90", "{}"); !strings.Contains(a.text, `"status":"running"`) {
		t.Errorf("start of a running one: %d %s", a.status, a.text)
	}
	if a := c.api("POST", "/v1/sandboxes/"+ours.ID+"/stop", "{}"); a.status != http.StatusOK || !strings.Contains(a.text, `"status":"stopped"`) {
		t.Errorf("stop: %d %s", a.status, a.text)
	}
	if a := c.api("DELETE", "/v1/sandboxes/by-name/"+made.ID, ""); a.status != http.StatusOK {
		t.Errorf("remove: %d %s", a.status, a.text)
	}
	if a := c.api("POST", "/v1/sandboxes", `{"name":"kept","image":{"type":"oci","reference":"microsandbox/python"},"lifecycle":{"ephemeral":true}}`); a.status != http.StatusBadRequest || !strings.Contains(a.text, "lifecycle.ephemeral") {
		t.Errorf("one that is gone when it stops, and is not started: %d %s", a.status, a.text)
	}
	for _, name := range []string{"box", made.ID} {
		if a := c.api("GET", "/v1/sandboxes/by-name/"+name, ""); a.status != http.StatusNotFound {
			t.Errorf("then it is %d %s", a.status, a.text)
		}
	}
}

// The WebSocket says hello, answers each frame in its form, and asks for each session
// whether the key is valid and the sandbox runs.
func TestMicrosandboxConnection(t *testing.T) {
	r, clients := sdkServer(t, nil, asMicrosandbox, "red", "blue")
	c, ctx := clients[0], t.Context()
	ours := c.create("box")
	if ws, err := clients[1].dial(ours.ID); err == nil {
		ws.CloseNow()
		t.Fatal("another team opens it")
	}
	ws, err := c.dial(ours.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	if _, hello, err := ws.Read(ctx); err != nil || !strings.HasPrefix(string(hello), "\x00\x00\x00\x01\x01\xff\xff\xff") || !strings.Contains(string(hello), wire.TypeReady) {
		t.Fatalf("hello: %q, %v", hello, err)
	}
	for name, q := range map[string]struct {
		id    uint32
		flags uint8
		kind  string
		p     any
		want  string
		says  string
	}{
		"ping":              {1, 0, wire.TypePing, nil, wire.TypePong, ""},
		"an unknown type":   {2, 0, "core.new", nil, wire.TypeError, wire.ErrorUnsupported},
		"a shutdown":        {3, wire.FlagShutdown, "core.shutdown", nil, wire.TypeError, wire.ErrorUnsupported},
		"no flag":           {4, 0, wire.TypeFS, nil, wire.TypeError, wire.ErrorFlags},
		"the id 0":          {0, wire.FlagStart, wire.TypeFS, nil, wire.TypeError, wire.ErrorSession},
		"a large id":        {wire.MaxID, wire.FlagStart, wire.TypeFS, nil, wire.TypeError, wire.ErrorSession},
		"no payload":        {5, wire.FlagStart, wire.TypeExec, []int{1}, wire.TypeError, wire.ErrorPayload},
		"no operation":      {6, wire.FlagStart, wire.TypeFS, nil, wire.TypeFSResponse, "does not know"},
		"no handle":         {7, wire.FlagStart, wire.TypeFS, wire.FS{Op: wire.Op{FStat: &wire.HandleOp{Handle: 9}}}, wire.TypeFSResponse, "not open"},
		"no program":        {8, wire.FlagStart, wire.TypeExec, wire.Exec{}, wire.TypeExecFailed, "bad_args"},
		"limits":            {9, wire.FlagStart, wire.TypeExec, wire.Exec{Cmd: "true", Rlimits: []wire.Rlimit{{Resource: "nofile"}}}, wire.TypeExecFailed, "rlimits"},
		"another machine":   {10, wire.FlagStart, wire.TypeTCPConnect, wire.TCPConnect{Host: "169.254.169.254", Port: 80}, wire.TypeTCPFailed, "own ports"},
		"of another client": {11, 0, wire.TypeTouch, nil, wire.TypeTouched, ""},
	} {
		f := ask(ctx, t, ws, q.id, q.flags, q.kind, q.p)
		if f.Type != q.want || f.ID != q.id || f.Flags != wire.FlagTerminal || !strings.Contains(string(f.Payload), q.says) {
			t.Errorf("%s: %+v %q", name, f, f.Payload)
		}
	}
	// A stop ends the connection, so that nothing on it wakes the sandbox.
	if a := c.api("POST", "/v1/sandboxes/"+ours.ID+"/stop", "{}"); a.status != http.StatusOK {
		t.Fatalf("stop: %d %s", a.status, a.text)
	}
	if _, _, err := ws.Read(ctx); err == nil {
		t.Error("the connection goes on after the stop")
	}
	if ws, err := c.dial(ours.ID); err == nil {
		ws.CloseNow()
		t.Error("a stopped sandbox has a connection")
	}
	second, err := c.dial(c.create("second").ID)
	if err != nil {
		t.Fatal(err)
	}
	defer second.CloseNow()
	if _, _, err := second.Read(ctx); err != nil {
		t.Fatal(err)
	}
	revokeKeys(t, r, "red")
	if f := ask(ctx, t, second, 1, wire.FlagStart, wire.TypeFS, wire.FS{Op: wire.Op{Stat: &wire.PathOp{Path: "/"}}}); f.Type != wire.TypeFSResponse || strings.Contains(string(f.Payload), "Stat") {
		t.Errorf("with a revoked key: %+v %q", f, f.Payload)
	}
}

// A connection holds so much and no more, and serves again what has ended.
func TestMicrosandboxConnectionBounds(t *testing.T) {
	_, clients := sdkServer(t, nil, asMicrosandbox, "red")
	c, ctx := clients[0], t.Context()
	ws, err := c.dial(c.create("box").ID)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	if _, _, err := ws.Read(ctx); err != nil {
		t.Fatal(err)
	}
	dir, id := t.TempDir(), uint32(0)
	for i := range 5 {
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	do := func(op wire.Op) (data map[string]any, failed string) {
		t.Helper()
		id++
		f := ask(ctx, t, ws, id, wire.FlagStart, wire.TypeFS, wire.FS{Op: op})
		var r wire.FSResponse
		if err := f.Decode(&r); err != nil || f.ID != id || f.Type != wire.TypeFSResponse {
			t.Fatalf("%+v, %v", f, err)
		}
		if r.Error != nil {
			return nil, *r.Error
		}
		return r.Data, ""
	}
	opens := wire.Op{OpenDir: &wire.PathOp{Path: dir}}
	const handles, sessions = 256, 64
	for range handles {
		if _, failed := do(opens); failed != "" {
			t.Fatal(failed)
		}
	}
	if _, failed := do(opens); !strings.Contains(failed, "256 files open") {
		t.Errorf("one more: %q", failed)
	}
	// A directory is read in parts, to an empty one.
	var got []int
	for range 4 {
		data, failed := do(wire.Op{ReadDir: &wire.HandleOp{Handle: handles, Limit: new(uint64(2))}})
		list, _ := data["List"].([]any)
		if failed != "" {
			t.Fatal(failed)
		}
		got = append(got, len(list))
	}
	if diff := cmp.Diff([]int{2, 2, 1, 0}, got); diff != "" {
		t.Error(diff)
	}
	for n := range uint64(handles) {
		if _, failed := do(wire.Op{CloseHandle: &wire.HandleOp{Handle: n + 1}}); failed != "" {
			t.Fatal(failed)
		}
	}
	if _, failed := do(wire.Op{OpenDir: &wire.PathOp{Path: filepath.Join(dir, "1")}}); !strings.Contains(failed, "no directory") {
		t.Errorf("a file as a directory: %q", failed)
	}
	// Writes whose data does not come are sessions that last.
	begin := func() {
		t.Helper()
		data, failed := do(wire.Op{OpenFile: &wire.OpenOp{Path: filepath.Join(dir, "new"), Options: wire.OpenOptions{Write: true, Create: true}}})
		handle, ok := data["Handle"].(int64)
		if !ok {
			t.Fatalf("%v %q", data, failed)
		}
		id++
		frame, err := wire.Append(nil, id, wire.FlagStart, wire.TypeFS, wire.FS{Op: wire.Op{Write: &wire.HandleOp{Handle: uint64(handle)}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := ws.Write(ctx, websocket.MessageBinary, frame); err != nil {
			t.Fatal(err)
		}
	}
	for range sessions {
		begin()
	}
	id++
	if f := ask(ctx, t, ws, id, wire.FlagStart, wire.TypeFS, wire.FS{Op: opens}); f.Type != wire.TypeError || !strings.Contains(string(f.Payload), "too much is under way") {
		t.Errorf("one session more: %+v %q", f, f.Payload)
	}
	if f := ask(ctx, t, ws, id-1, 0, wire.TypeFSData, wire.Data{}); f.Type != wire.TypeFSResponse || f.ID != id-1 {
		t.Errorf("the end of one: %+v %q", f, f.Payload)
	}
	if _, failed := do(opens); failed != "" {
		t.Errorf("after the end of one: %q", failed)
	}
}

// A connection to a port of the sandbox carries data both ways, and each end may say that
// nothing more comes.
func TestMicrosandboxTCP(t *testing.T) {
	_, clients := sdkServer(t, nil, asMicrosandbox, "red")
	c, ctx := clients[0], t.Context()
	l, err := net.Listen("tcp", "127.0.0.1:0") // the engine of these tests has the machine's own ports
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	heard := make(chan string, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		data, _ := io.ReadAll(conn)
		heard <- string(data)
		_, _ = io.WriteString(conn, "heard "+string(data))
	}()
	ws, err := c.dial(c.create("box").ID)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	if _, _, err := ws.Read(ctx); err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if f := ask(ctx, t, ws, 1, wire.FlagStart, wire.TypeTCPConnect, wire.TCPConnect{Host: "localhost", Port: uint16(port)}); f.Type != wire.TypeTCPOpen || f.ID != 1 {
		t.Fatalf("connect: %+v %q", f, f.Payload)
	}
	for _, m := range []struct {
		kind string
		p    any
	}{{wire.TypeTCPData, wire.Data{Data: []byte("one ")}}, {wire.TypeTCPData, wire.Data{Data: []byte("two")}}, {wire.TypeTCPEOF, nil}} {
		data, err := wire.Append(nil, 1, 0, m.kind, m.p)
		if err != nil {
			t.Fatal(err)
		}
		if err := ws.Write(ctx, websocket.MessageBinary, data); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-heard; got != "one two" {
		t.Errorf("the program heard %q", got)
	}
	said := ""
	for {
		f := next(ctx, t, ws)
		switch f.Type {
		case wire.TypeTCPData:
			var d wire.Data
			if err := f.Decode(&d); err != nil {
				t.Fatal(err)
			}
			said += string(d.Data)
			continue
		case wire.TypeTCPEOF:
			continue
		}
		if f.Type != wire.TypeTCPClosed || said != "heard one two" {
			t.Errorf("said %q, then %+v %q", said, f, f.Payload)
		}
		return
	}
}
