package docs

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
)

// A page is a page that a reader follows, with what its lines assume.
type page struct {
	file string
	// files exist when the reader begins.
	files map[string]string
	// lines says what is special about commands that begin with a text.
	lines map[string]special
}

// A special command is not just typed.
type special struct {
	before string // typed first, without being shown
	input  string
	exit   int
	// replace has, alternating, texts of the page and what replaces them here.
	replace []string
	// interrupted is set for what runs until the reader has seen enough.
	interrupted bool
	// elsewhere says what shows that the line works, which cannot be typed here.
	elsewhere string
}

// reader types the commands of a page into a shell.
type reader struct {
	t   *testing.T
	d   *covetest.Daemon
	dir string
}

func newReader(t *testing.T, d *covetest.Daemon, files map[string]string) *reader {
	t.Helper()
	r := &reader{t, d, filepath.Join(d.StateDir, "reader")}
	r.run("mkdir -p reader/bin; ln -sf "+d.Binary+" reader/bin/cove", "", d.StateDir)
	for name, content := range files {
		if out, code := r.run("cat > "+name, content, r.dir); code != 0 {
			t.Fatalf("%s: %s", name, out)
		}
	}
	return r
}

// run types a line and returns what it prints on both outputs, and its exit code.
func (r *reader) run(line, input, dir string) (string, int) {
	r.t.Helper()
	cmd := r.shell(line, dir)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() < 0 {
		r.t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// interrupt types a line, and Ctrl-C once it has printed a text. It returns the output
// until then.
func (r *reader) interrupt(line string, seen func(out string) bool) string {
	r.t.Helper()
	cmd := r.shell("exec "+line, r.dir)
	printed, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	var out strings.Builder
	for b := make([]byte, 4096); err == nil && !seen(out.String()); {
		var n int
		n, err = printed.Read(b)
		out.Write(b[:n])
	}
	_ = cmd.Process.Signal(os.Interrupt)
	_, _ = io.Copy(io.Discard, printed)
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() < 0 {
		r.t.Errorf("%s: %v", line, err)
	}
	return out.String()
}

// shell is a line at the reader's shell, which has five minutes.
func (r *reader) shell(line, dir string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Minute)
	r.t.Cleanup(cancel)
	ready := r.d.Command(ctx) // for the user and the environment
	cmd := exec.CommandContext(ctx, "bash", "-c", line)
	cmd.Dir, cmd.SysProcAttr, cmd.WaitDelay = dir, ready.SysProcAttr, time.Second
	cmd.Env = append(ready.Env, "PATH="+filepath.Join(r.dir, "bin")+":"+os.Getenv("PATH"))
	return cmd
}

// follow types the commands of a page.
func follow(t *testing.T, d *covetest.Daemon, p page) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", p.file))
	if err != nil {
		t.Fatal(err)
	}
	commands, err := Commands(text)
	if err != nil || len(commands) == 0 {
		t.Fatalf("%s: %d commands, %v", p.file, len(commands), err)
	}
	r := newReader(t, d, p.files)
	used := map[string]bool{}
	for _, c := range commands {
		longest := ""
		for prefix := range p.lines {
			if strings.HasPrefix(c.Text, prefix) && len(prefix) > len(longest) {
				longest = prefix
			}
		}
		how := p.lines[longest]
		used[longest] = true
		if how.elsewhere != "" {
			continue
		}
		if how.before != "" {
			if out, code := r.run(how.before, "", r.dir); code != 0 {
				t.Fatalf("%s:%d: what the test types before, %s: exit %d\n%s", p.file, c.Line, how.before, code, out)
			}
		}
		replace := strings.NewReplacer(how.replace...).Replace
		c.Text, c.Output = replace(c.Text), replace(c.Output)
		if how.interrupted {
			seen := func(out string) bool { return out != "" && Matches(c.Output, out) }
			if out := r.interrupt(c.Text, seen); !seen(out) {
				t.Errorf("%s:%d: %s\nprinted:\n%s\nthe page says:\n%s", p.file, c.Line, c.Text, out, c.Output)
			}
			continue
		}
		out, code := r.run(c.Text, how.input, r.dir)
		if code != how.exit {
			t.Errorf("%s:%d: %s\nexit %d, want %d:\n%s", p.file, c.Line, c.Text, code, how.exit, out)
		}
		if !Matches(c.Output, out) {
			t.Errorf("%s:%d: %s\nprinted:\n%s\nthe page says:\n%s", p.file, c.Line, c.Text, out, c.Output)
		}
	}
	for prefix := range p.lines {
		if !used[prefix] {
			t.Errorf("%s has no line any more that begins with %q", p.file, prefix)
		}
	}
}

// TestREADME and TestMorePages follow the pages from a machine on which nothing was
// done yet.
func TestREADME(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) { follow(t, d, readme) })
}

// In "make test", TestREADME and TestEveryPage stand for it.
func TestMorePages(t *testing.T) {
	needs.GVisor(t)
	uid := uint32(0)
	if os.Geteuid() == 0 {
		uid = covetest.OrdinaryUID
	}
	for _, p := range pages {
		t.Run(strings.TrimSuffix(filepath.Base(p.file), ".md"), func(t *testing.T) {
			follow(t, covetest.Borrow(t, covetest.Options{UID: uid}), p)
		})
	}
}

// TestEveryPage fails if a page shows commands that nobody follows.
func TestEveryPage(t *testing.T) {
	known := map[string]bool{readme.file: true, "docs/computers.md": true} // test/computer follows the latter
	for _, p := range pages {
		known[p.file] = true
	}
	all, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(all, "../../README.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name, err := filepath.Rel("../..", path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "```console\n") && !known[name] {
			t.Errorf("nothing follows the commands of %s", name)
		}
	}
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		page, output string
		want         bool
	}{
		{"", "anything\n", true},
		{"42\n", "42\n", true},
		{"42\n", "43\n", false},
		{"42\n", "42\n43\n", false},
		{"sbx-pvzbd3lvtf2ms4ehwf7zwsyfgk\n", "sbx-i637gfu3lstzffov2rzr6r7vje\n", true},
		{"sbx-pvzbd3lvtf2ms4ehwf7zwsyfgk\n", "", false},
		{"TIME   TO\n2026-11-21T01:19:40Z  b\n", "TIME                 TO\n2027-01-02T03:04:05Z b\n", true},
		{"sbx-…\n", "sbx-i637gfu3lstzffov2rzr6r7vje\nsbx-pvzbd3lvtf2ms4ehwf7zwsyfgk\n", false},
		{"first\n…\n", "first\nand\nmore\n", true},
		{"a.b\n", "acb\n", false},
	} {
		if got := Matches(c.page, c.output); got != c.want {
			t.Errorf("Matches(%q, %q) is %v", c.page, c.output, got)
		}
	}
}
