// Package daytona runs Daytona's own SDK, unmodified, against "cove serve" with real
// sandboxes. The checks are in checks/*.mjs; the table of docs/compat.md is made of
// what they show.
package daytona

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) { covetest.Main(m) }

// nodeMajor is the oldest Node that the SDK runs on.
const nodeMajor = 20

// node returns a Node that is new enough.
func node(t *testing.T) string {
	t.Helper()
	needs.File(t, "node_modules/@daytonaio/sdk/package.json") // npm ci --prefix test/sdk/daytona
	for _, candidate := range []string{os.Getenv("NODE"), "node"} {
		out, err := exec.CommandContext(t.Context(), candidate, "--version").Output()
		if err != nil {
			continue
		}
		major, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(string(out)), "v"), ".")
		if n, err := strconv.Atoi(major); err == nil && n >= nodeMajor {
			return candidate
		}
	}
	needs.Command(t, "node "+strconv.Itoa(nodeMajor)+" or newer")
	return ""
}

// A row is what came of one check.
type row struct {
	Group   string   `json:"group"`
	Check   string   `json:"check"`
	Methods []string `json:"methods"`
	Error   string   `json:"error"`
	MS      int64    `json:"ms"`
}

// TestSDK runs all checks as an ordinary user, and "make soak" as root too. What they
// show is the table of docs/compat.md.
func TestSDK(t *testing.T) {
	var mu sync.Mutex
	var rows []row
	t.Run("users", func(t *testing.T) {
		covetest.ForUsers(t, false, func(t *testing.T, uid uint32) {
			got := suite(t, uid)
			mu.Lock()
			defer mu.Unlock()
			rows = append(rows, got...)
		})
	})
	if os.Getenv("COVE_GROUPS") == "" && !t.Failed() {
		table(t, rows)
	}
}

// suite runs all checks against a daemon of a user, and reports those that fail.
func suite(t *testing.T, uid uint32) []row {
	t.Helper()
	needs.GVisor(t)
	program := node(t)
	registry, image := dialecttest.PushShell(t, "")
	d := covetest.Borrow(t, covetest.Options{UID: uid, Args: []string{"--insecure-registries", registry}})
	key, err := d.Client.CreateKey(t.Context(), sandbox.CreateKeyRequest{Name: "sdk " + t.Name(), Team: sandbox.LocalCaller().Team, Scopes: []sandbox.Scope{
		sandbox.ScopeSandboxesRead, sandbox.ScopeSandboxesWrite, sandbox.ScopeFilesWrite, sandbox.ScopeTemplatesWrite,
	}})
	if err != nil {
		t.Fatal(err)
	}
	results := filepath.Join(t.TempDir(), "results.jsonl")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "suite.mjs")
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "DAYTONA_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "DAYTONA_API_URL="+d.URL+"/daytona/api", "DAYTONA_API_KEY="+key.Secret, "COVE_RESULTS="+results, "COVE_IMAGE="+image)
	cmd.WaitDelay = 10 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("suite.mjs: %v\n%s", err, out)
	}
	return read(t, results)
}

// read returns the rows of a file.
func read(t *testing.T, results string) []row {
	t.Helper()
	f, err := os.Open(results)
	if err != nil {
		t.Fatalf("no check has ended: %v", err)
	}
	defer f.Close()
	var rows []row
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var r row
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, r)
		if r.Error != "" {
			t.Errorf("%s: %s: %s", r.Group, r.Check, r.Error)
		} else if testing.Verbose() {
			t.Logf("%s: %s (%d ms)", r.Group, r.Check, r.MS)
		}
	}
	return rows
}
