package cells

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/cove-sh/cove/internal/testing/needs"
)

// TestInstallAgentSurvivesPowerLoss checks that the agent is intact after a power failure
// right after its installation, and that a damaged one is installed again.
func TestInstallAgentSurvivesPowerLoss(t *testing.T) {
	disk := needs.NewDisk(t, 64)
	agent := bytes.Repeat([]byte("agent"), 1<<20)
	install := func(dir string) string {
		t.Helper()
		e := &Engine{cfg: Config{Dir: dir, Agent: agent, AgentDigest: "digest"}}
		if err := e.installAgent(); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(e.agentDir(), "agent")
	}
	check := func(path string) {
		t.Helper()
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, agent) {
			t.Errorf("the agent has %d bytes, %v; want %d", len(got), err, len(agent))
		}
	}
	path := install(disk.Dir)
	if err := disk.CutPower(); err != nil {
		t.Fatal(err)
	}
	if err := disk.RestorePower(t.Context()); err != nil {
		t.Fatal(err)
	}
	check(path)
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	check(install(disk.Dir))
}

// TestInstallProgramSurvivesUpgrade replaces the program's file while a daemon runs: the
// program that cells run stays the same, and the next daemon uses the new one.
func TestInstallProgramSurvivesUpgrade(t *testing.T) {
	dir := t.TempDir()
	exe := filepath.Join(dir, "cove")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(exe+".new", []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(exe+".new", exe); err != nil {
			t.Fatal(err)
		}
	}
	install := func() string {
		t.Helper()
		path, err := installProgram(filepath.Join(dir, "bin"), exe)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	read := func(path string) string {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	write("old")
	first := install()
	if again := install(); again != first {
		t.Errorf("installed twice: %s and %s", first, again)
	}
	write("new version")
	if got := read(first); got != "old" {
		t.Errorf("the installed program became %q", got)
	}
	second := install()
	if got := read(second); got != "new version" {
		t.Errorf("after the upgrade the installed program is %q", got)
	}
}

// TestIntact checks that a kept program that is a hard link to the user's file is invalid
// once that file is written to, and that a copy is not.
func TestIntact(t *testing.T) {
	dir := t.TempDir()
	user := filepath.Join(dir, "cove")
	if err := os.WriteFile(user, []byte("first"), 0o755); err != nil {
		t.Fatal(err)
	}
	linked, err := installProgram(filepath.Join(dir, "bin"), user)
	if err != nil {
		t.Fatal(err)
	}
	if err := intact(linked); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(user, []byte("second, and longer"), 0o755); err != nil {
		t.Fatal(err)
	}
	if intact(linked) == nil {
		t.Error("a program that was written to counts as intact")
	}
	other, err := installProgram(filepath.Join(dir, "bin"), user)
	if err != nil {
		t.Fatal(err)
	}
	if err := copyProgram(other); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(user, []byte("third"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := intact(other); err != nil {
		t.Error(err)
	}
	if data, err := os.ReadFile(other); err != nil || string(data) != "second, and longer" {
		t.Errorf("the copy holds %q, %v", data, err)
	}
	if intact(filepath.Join(dir, "none")) == nil {
		t.Error("what is not there is intact")
	}
}
