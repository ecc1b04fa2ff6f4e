package superserve_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect/superserve"
	"github.com/cove-sh/cove/sandbox"
)

func TestNetworkLog(t *testing.T) {
	svc := newImaginary()
	shows(t, svc, "sandbox_network_log", `{"sandbox_id":"sbx-1"}`, `{"events":[],"has_more":false}`, "(no network activity)")
	at := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	svc.events = []sandbox.NetworkEvent{
		{ID: 1, Time: at, Kind: sandbox.NetworkDNS, Host: "pypi.org", Verdict: sandbox.NetworkAllowed},
		{ID: 2, Time: at, Kind: sandbox.NetworkConnection, Connection: 7, Open: true, Host: "pypi.org", Address: "198.51.100.7", Port: 443, Verdict: sandbox.NetworkAllowed, Match: sandbox.MatchDomain},
		{ID: 3, Time: at, Kind: sandbox.NetworkConnection, Connection: 8, Address: "169.254.169.254", Port: 80, Verdict: sandbox.NetworkBlocked, Match: sandbox.MatchInternal},
		{ID: 4, Time: at, Kind: sandbox.NetworkRequest, Host: "api.example", Method: "GET", Path: "/v1\nx", Status: 200, DurationMS: 12, Secret: "ai", Verdict: sandbox.NetworkAllowed},
		{ID: 5, Time: at, Kind: sandbox.NetworkRequest, Host: "evil.example", Method: "GET", Path: "/", Status: 403, Secret: "ai", Verdict: sandbox.NetworkBlocked, Match: sandbox.MatchSecret},
		{ID: 6, Time: at, Kind: sandbox.NetworkConnection, Connection: 7, Host: "pypi.org", Address: "198.51.100.7", Port: 443, Verdict: sandbox.NetworkAllowed, Match: sandbox.MatchDomain, BytesOut: 10, BytesIn: 20},
	}
	const ts = `"ts":"2026-07-01T12:00:00.000Z"`
	row := map[int]string{
		6: `{"kind":"connection","id":6,` + ts + `,"host":"pypi.org","dstIp":"198.51.100.7","dstPort":443,"verdict":"allowed","matchRule":"domain","bytesSent":10,"bytesRecv":20}`,
		5: `{"kind":"request","id":5,` + ts + `,"host":"evil.example","method":"GET","path":"/","status":403,"latencyMs":0,"secretId":"ai","errorCode":"credential_host_mismatch"}`,
		4: `{"kind":"request","id":4,` + ts + `,"host":"api.example","method":"GET","path":"/v1\nx","status":200,"upstreamStatus":200,"latencyMs":12,"secretId":"ai"}`,
		3: `{"kind":"connection","id":3,` + ts + `,"dstIp":"169.254.169.254","dstPort":80,"verdict":"blocked","matchRule":"internal-ip","bytesSent":0,"bytesRecv":0}`,
	}
	const stamp = "2026-07-01T12:00:00.000Z\t"
	shows(t, svc, "sandbox_network_log", `{"sandbox_id":"sbx-1"}`,
		`{"events":[`+row[6]+","+row[5]+","+row[4]+","+row[3]+`],"has_more":false}`,
		stamp+"allowed pypi.org\n"+stamp+"req GET evil.example/ → 403\n"+stamp+`req GET api.example/v1\nx → 200`+"\n"+stamp+"blocked 169.254.169.254")
	shows(t, svc, "sandbox_network_log", `{"sandbox_id":"sbx-1","limit":1}`,
		`{"events":[`+row[6]+`],"has_more":true,"next_cursor":"2026-07-01T12:00:00.000Z"}`, stamp+"allowed pypi.org")
	shows(t, svc, "sandbox_network_log", `{"sandbox_id":"sbx-1","verdict":"blocked"}`, `{"events":[`+row[3]+`],"has_more":false}`, stamp+"blocked 169.254.169.254")
	refuses(t, svc, "sandbox_network_log", `{"sandbox_id":"sbx-2"}`, gone("sbx-2"))
	if svc.resumed > 0 {
		t.Error("reading the log resumed the sandbox")
	}
	for i := range 300 {
		svc.events = append(svc.events, sandbox.NetworkEvent{ID: int64(10 + i), Kind: sandbox.NetworkConnection, Connection: int64(10 + i), Verdict: sandbox.NetworkFailed})
	}
	for args, want := range map[string]int{`{"sandbox_id":"sbx-1"}`: 50, `{"sandbox_id":"sbx-1","limit":200}`: 200, `{"sandbox_id":"sbx-1","limit":1e9}`: 200} {
		structured, _ := ask(t, svc, "sandbox_network_log", args)
		if n := strings.Count(structured, `"kind"`); n != want {
			t.Errorf("%s returns %d rows, want %d", args, n, want)
		}
	}
}

func TestExecRequests(t *testing.T) {
	svc := newImaginary()
	for args, ms := range map[string]int64{
		`"command":"true"`: 60_000, `"command":"true","timeout_ms":5000`: 5000, `"command":"true","timeout_ms":600001`: 600_000, `"command":"true","timeout_ms":1e300`: 600_000,
	} {
		svc.executed = nil
		ask(t, svc, "sandbox_exec", `{"sandbox_id":"sbx-1",`+args+`}`)
		if len(svc.executed) != 1 || svc.executed[0].TimeoutMS != ms || !cmp.Equal(svc.executed[0].Command, []string{"/bin/sh", "-c", "true"}) {
			t.Errorf("%s: asked for %+v", args, svc.executed)
		}
	}
	svc.job = sandbox.Job{ExitCode: 137, EndCause: sandbox.EndTimeout}
	svc.output = []byte("so far")
	shows(t, svc, "sandbox_exec", `{"sandbox_id":"sbx-1","command":"sleep 9"}`, `{"stdout":"so far","stderr":"","exit_code":124,"truncated":false}`, "exit 124\n--- stdout ---\nso far")
	refuses(t, svc, "sandbox_exec", `{"sandbox_id":"sbx-1","command":"pwd","cwd":"tmp"}`, `Invalid request: cwd must be absolute (start with "/"): tmp`)
	refuses(t, svc, "sandbox_exec", `{"sandbox_id":"sbx-3","command":"pwd"}`, gone("sbx-3"))
}

// TestTruncation checks that a stream keeps its head and its tail, without partial
// characters.
func TestTruncation(t *testing.T) {
	for name, tt := range map[string]struct {
		output string
		cut    bool
	}{
		"at the limit":       {strings.Repeat("a", 32768), false},
		"one more":           {strings.Repeat("a", 32769), true},
		"long":               {strings.Repeat("0123456789", 100_000), true},
		"characters":         {strings.Repeat("€", 10_922), false},
		"too many":           {strings.Repeat("€", 10_923), true},
		"of four bytes":      {"a" + strings.Repeat("😀", 100_000), true},
		"bytes that are not": {strings.Repeat("\xff", 20_000), true}, // each is shown by three
	} {
		t.Run(name, func(t *testing.T) {
			svc := newImaginary()
			svc.output = []byte(tt.output)
			structured, _ := ask(t, svc, "sandbox_exec", `{"sandbox_id":"sbx-1","command":"x"}`)
			var got struct {
				Stdout      string `json:"stdout"`
				Truncated   bool   `json:"truncated"`
				StdoutBytes int    `json:"stdout_bytes"`
			}
			if err := json.Unmarshal([]byte(structured), &got); err != nil {
				t.Fatal(err)
			}
			whole := string([]rune(tt.output))
			if got.Truncated != tt.cut || !tt.cut && (got.Stdout != whole || got.StdoutBytes != 0) {
				t.Fatalf("truncated %t, %d bytes", got.Truncated, len(got.Stdout))
			}
			if !tt.cut {
				return
			}
			head, rest, _ := strings.Cut(got.Stdout, "\n… [")
			var dropped int
			marker, tail, _ := strings.Cut(rest, "] …\n")
			if _, err := fmt.Sscanf(marker, "%d bytes truncated", &dropped); err != nil {
				t.Fatalf("no marker in %.100q: %v", rest, err)
			}
			if got.StdoutBytes != len(tt.output) || len(head)+len(tail)+dropped != len(whole) || !utf8.ValidString(got.Stdout) ||
				!strings.HasPrefix(whole, head) || !strings.HasSuffix(whole, tail) || len(head) > 19660 || len(head) < 19657 || len(tail) > 11468 || len(tail) < 11465 {
				t.Errorf("of %d bytes the head has %d and the tail %d, and %d are said to be dropped", len(whole), len(head), len(tail), dropped)
			}
		})
	}
}

// TestArchivesHaveATopDirectory checks that two archives unpack side by side, and that
// symbolic links are left out.
func TestArchivesHaveATopDirectory(t *testing.T) {
	var data bytes.Buffer
	w := zip.NewWriter(&data)
	for name, mode := range map[string]fs.FileMode{"a.txt": 0o644, "sub/": fs.ModeDir | 0o755, "sub/b.sh": 0o755, "link": fs.ModeSymlink | 0o777} {
		h := &zip.FileHeader{Name: name, Method: zip.Deflate}
		h.SetMode(mode)
		entry, err := w.CreateHeader(h)
		if err == nil && !mode.IsDir() {
			_, err = entry.Write([]byte("content of " + name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	svc := newImaginary()
	svc.archive = data.Bytes()
	structured, _ := ask(t, svc, "sandbox_files_download_dir", `{"sandbox_id":"one","path":"/workspace/proj/"}`)
	var result struct {
		Bytes   int    `json:"bytes"`
		Content []byte `json:"content"`
	}
	if err := json.Unmarshal([]byte(structured), &result); err != nil || result.Bytes != len(result.Content) {
		t.Fatalf("%s: %v", structured, err)
	}
	z, err := zip.NewReader(bytes.NewReader(result.Content), int64(len(result.Content)))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got[f.Name] = f.Mode().String() + " " + string(content)
	}
	want := map[string]string{"proj/a.txt": "-rw-r--r-- content of a.txt", "proj/sub/": "drwxr-xr-x ", "proj/sub/b.sh": "-rwxr-xr-x content of sub/b.sh"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the archive (-want +got):\n%s", diff)
	}
	svc.archive = []byte("no archive")
	if structured, text := ask(t, svc, "sandbox_files_download_dir", `{"sandbox_id":"one","path":"/x"}`); structured != "" || !strings.Contains(text, "damaged") {
		t.Errorf("a damaged archive: %s %s", structured, text)
	}
}

// TestCuratedTemplates checks that the product's curated templates are listed under its
// names if their substitutes are built.
func TestCuratedTemplates(t *testing.T) {
	svc := newImaginary()
	svc.ready = []sandbox.Template{{Name: "code-interpreter", State: sandbox.TemplateReady, Resources: sandbox.Resources{VCPUs: 2, MemoryMiB: 2048, DiskMiB: 8192}}}
	_, text := ask(t, svc, "sandbox_template_list", `{"name_prefix":"superserve/"}`)
	want := "superserve/base\tready\t1 vCPU / 1024 MiB\nsuperserve/code-interpreter\tready\t2 vCPU / 2048 MiB\n" +
		"superserve/python-3.11\tready\t2 vCPU / 2048 MiB\nsuperserve/python-ml\tready\t2 vCPU / 2048 MiB"
	if text != want {
		t.Errorf("listed\n%s\nwant\n%s", text, want)
	}
}

// TestLargeDirectory checks that a directory is listed completely or not at all.
func TestLargeDirectory(t *testing.T) {
	svc := newImaginary()
	structured, _ := ask(t, svc, "sandbox_files_list", `{"sandbox_id":"one","path":"/20000"}`)
	if n := strings.Count(structured, `"name"`); n != 20_000 {
		t.Errorf("%d of 20000 entries are listed", n)
	}
	refuses(t, svc, "sandbox_files_list", `{"sandbox_id":"one","path":"/20001"}`,
		"Invalid request: /20001 has over 20000 entries; look at a part of it with sandbox_exec, such as ls /20001 | head")
}

func TestTemplates(t *testing.T) {
	svc := newImaginary()
	shows(t, svc, "sandbox_template_list", `{}`,
		`{"templates":[{"id":"superserve/base","name":"superserve/base","status":"ready","vcpu":1,"memoryMib":1024,"diskMib":4096},{"id":"host","name":"host","status":"ready","vcpu":2,"memoryMib":1024,"diskMib":4096},{"id":"mine","name":"mine","status":"failed","vcpu":1,"memoryMib":1024,"diskMib":4096}]}`,
		"superserve/base\tready\t1 vCPU / 1024 MiB\nhost\tready\t2 vCPU / 1024 MiB\nmine\tfailed\t1 vCPU / 1024 MiB")
	shows(t, svc, "sandbox_template_list", `{"name_prefix":"none"}`, `{"templates":[]}`, "(no templates)")
	shows(t, svc, "sandbox_template_create", `{"name":"tools","from":"debian:12","vcpu":1,"run_steps":["apt-get update && apt-get install -y --no-install-recommends jq git","apt-get install -y curl jq"]}`,
		`{"template":{"id":"tools","name":"tools","status":"building","vcpu":1,"memoryMib":1024,"diskMib":4096}}`,
		"building template tools (1 vCPU / 1024 MiB), status building. Poll sandbox_template_list until it is ready, then use it as from_template.")
	debian := sandbox.TemplateSource{Debian: "bookworm"}
	open := &sandbox.NetworkPolicy{Preset: sandbox.NetworkOpen}
	want := sandbox.BuildTemplateRequest{Name: "tools", Spec: &sandbox.TemplateSpec{From: debian, Apt: []string{"curl", "git", "jq"}, Resources: sandbox.Resources{VCPUs: 1}}}
	if diff := cmp.Diff(want, svc.built); diff != "" {
		t.Errorf("built (-want +got):\n%s", diff)
	}
	ask(t, svc, "sandbox_template_create", `{"name":"mine","from":"debian","run_steps":["apt-get install jq"]}`)
	if svc.built.Force {
		t.Error("the second build of a template does not use the first one's cache")
	}
	// Images and steps, in the given order.
	for args, want := range map[string]sandbox.TemplateSpec{
		`"from":"python:3.11"`: {From: sandbox.TemplateSource{Image: "python:3.11"}},
		`"from":"debian"`:      {From: debian},
		`"from":"debian","run_steps":["apt-get install -y jq","make","apt-get install -y git"]`: {
			From: debian, Apt: []string{"jq"}, Run: []sandbox.TemplateStep{{Run: "make"}, {Run: "apt-get install -y git"}}, BuildNetwork: open,
		},
		`"from":"node:22","run_steps":["apt-get install -y jq"],"vcpu":4,"memory_mib":2048,"disk_mib":8192,"start_cmd":"serve","ready_cmd":"curl localhost"`: {
			From: sandbox.TemplateSource{Image: "node:22"}, Run: []sandbox.TemplateStep{{Run: "apt-get install -y jq"}}, BuildNetwork: open, User: "root",
			Resources: sandbox.Resources{VCPUs: 4, MemoryMiB: 2048, DiskMiB: 8192}, Start: &sandbox.StartCommand{Command: "serve", Ready: "curl localhost", TimeoutMS: 600_000},
		},
		`"from":"debian","run_steps":["apt-get install -y jq; rm -rf /"]`: {From: debian, Run: []sandbox.TemplateStep{{Run: "apt-get install -y jq; rm -rf /"}}, BuildNetwork: open},
		`"from":"debian","run_steps":["apt-get install -y -o=x jq"]`:      {From: debian, Run: []sandbox.TemplateStep{{Run: "apt-get install -y -o=x jq"}}, BuildNetwork: open},
	} {
		ask(t, svc, "sandbox_template_create", `{"name":"x",`+args+`}`)
		if diff := cmp.Diff(&want, svc.built.Spec); diff != "" {
			t.Errorf("%s (-want +got):\n%s", args, diff)
		}
	}
	svc.building = 5
	refuses(t, svc, "sandbox_template_create", `{"name":"x","from":"debian","run_steps":["apt-get install jq"]}`, "Rate limited: 5 templates are being built. Retry after a short backoff.")
	svc.building = 4
	refuses(t, svc, "sandbox_template_create", `{"name":"Bad Name","from":"debian","run_steps":["apt-get install jq"]}`, "Invalid request: the name is not valid")
	refuses(t, svc, "sandbox_template_create", `{"name":"host","from":"debian","run_steps":["apt-get install jq"]}`, "Conflict: there is a template host already, choose another name")
}

// TestFailures checks each error in the product's terms.
func TestFailures(t *testing.T) {
	d := superserve.New()
	for want, err := range map[string]error{
		"Authentication failed with the key of SUPERSERVE_API_KEY: no key":                                    sandbox.Errorf(sandbox.CodeUnauthenticated, "no key"),
		"Authentication failed with the key of SUPERSERVE_API_KEY: lacks a scope":                             sandbox.Errorf(sandbox.CodeForbidden, "lacks a scope"),
		"Not found: /x does not exist":                                                                        sandbox.Errorf(sandbox.CodeNotFound, "/x does not exist"),
		"Invalid request: bad":                                                                                sandbox.Errorf(sandbox.CodeInvalid, "bad"),
		"Sandbox is in a conflicting state: it stops. Re-check with sandbox_info.":                            sandbox.Errorf(sandbox.CodeNotRunning, "it stops"),
		"Sandbox quota reached. Pause or kill a sandbox (you have 9), or retry later.":                        sandbox.Errorf(sandbox.CodeQuotaExceeded, "you have 9"),
		"Request timed out: slow":                                                                             sandbox.Errorf(sandbox.CodeTimeout, "slow"),
		"Server error, usually transient and safe to retry: internal error; see the server's log for details": errors.New("a path and a token"),
		"Server error, usually transient and safe to retry: away":                                             sandbox.Errorf(sandbox.CodeUnavailable, "away"),
		"cannot":                    sandbox.Errorf(sandbox.CodeUnsupported, "cannot"),
		"the request was cancelled": context.Canceled,
	} {
		res := d.Failure(err)
		if text := res.Content[0].(*mcp.TextContent).Text; text != want || !res.IsError || res.StructuredContent != nil {
			t.Errorf("%v: %+v, %s; want %s", err, res, text, want)
		}
	}
}
