package cli

import (
	"archive/zip"
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{
		"512": 512, "512m": 512, "512M": 512, "512MiB": 512, "512mb": 512, "2g": 2048, "2GiB": 2048, "1t": 1 << 20, "0": 0,
	} {
		if got, err := parseMiB(text); err != nil || got != want {
			t.Errorf("%s: got %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "m", "-1", "1.5g", "10k", "lots", "99999999999999t"} {
		if _, err := parseMiB(text); err == nil {
			t.Errorf("%q is taken for a size", text)
		}
	}
}

func TestSeconds(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "90s": 90, "2h": 7200, "1m30s": 90} {
		if got, err := parseSeconds(text); err != nil || got != want {
			t.Errorf("%s: got %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "90", "-1s", "1500ms", "soon"} {
		if _, err := parseSeconds(text); err == nil {
			t.Errorf("%q is taken for a duration", text)
		}
	}
}

func TestClean(t *testing.T) {
	for text, want := range map[string]string{
		"plain ü\n\ttext":    "plain ü\n\ttext",
		"\x1b[31mred\x07":    `\u001b[31mred\u0007`,
		"a\u202eb":           `a\u202eb`,
		"line\rover":         `line\u000dover`,
		"\u009b31m of C1":    `\u009b31m of C1`,
		"invalid \x9b bytes": "invalid \uFFFD bytes",
	} {
		if got := clean(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// Foreign text on one line must not be able to make another line.
func TestTablesKeepTheirRows(t *testing.T) {
	var out bytes.Buffer
	a := &app{Program: Program{Stdout: &out}}
	if err := a.printTable([]string{"NAME", "REASON"}, [][]string{{"a", "x\nforged  row\tcell"}}); err != nil {
		t.Fatal(err)
	}
	if err := a.fields("name", "a\nstate:  forged"); err != nil {
		t.Fatal(err)
	}
	want := "NAME  REASON\na     x\\nforged  row\\tcell\nname:  a\\nstate:  forged\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

// "cove cp work:/x /dev/null" of root must not put a file in the device's place.
func TestDownloadKeepsDevices(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan string)
	go func() {
		data, _ := os.ReadFile(pipe)
		read <- string(data)
	}()
	if err := writeWhole(pipe, strings.NewReader("through"), 0o644); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(pipe)
	if err != nil || info.Mode().Type() != os.ModeNamedPipe {
		t.Fatalf("the pipe became %v, %v", info.Mode(), err)
	}
	if got := <-read; got != "through" {
		t.Errorf("the pipe passed on %q", got)
	}
}

func TestParseSide(t *testing.T) {
	for arg, want := range map[string]side{
		"work:/x":       {"work", "/x"},
		"work:x/y":      {"work", "x/y"},
		"work:":         {"work", "."},
		"work:a:b":      {"work", "a:b"},
		"./work:x":      {"", "./work:x"},
		"dir/a:b":       {"", "dir/a:b"},
		"file":          {"", "file"},
		"-":             {"", "-"},
		":x":            {"", ":x"},
		"/abs/path:x":   {"", "/abs/path:x"},
		"sbx-abc123:/x": {"sbx-abc123", "/x"},
	} {
		if got := parseSide(arg); got != want {
			t.Errorf("%s: got %+v, want %+v", arg, got, want)
		}
	}
}

func TestPrintJSONHasItsVersionFirst(t *testing.T) {
	var out bytes.Buffer
	a := &app{Program: Program{Stdout: &out}}
	if err := a.printJSON(itemList[sandbox.Key]{[]sandbox.Key{}}); err != nil {
		t.Fatal(err)
	}
	if err := a.printJSON(struct{}{}); err != nil {
		t.Fatal(err)
	}
	want := "{\n  \"schema_version\": 1,\n  \"items\": []\n}\n{\n  \"schema_version\": 1\n}\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("differs (-want +got):\n%s", diff)
	}
	if err := a.printJSON([]int{1}); err == nil {
		t.Error("a list is printed without a version")
	}
}

// entry is one entry of an archive that a sandbox made.
type entry struct {
	name string
	mode fs.FileMode
	text string
}

func zipOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, e := range entries {
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate}
		h.SetMode(e.mode)
		w, err := z.CreateHeader(h)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func unpackInto(t testing.TB, data []byte, maxBytes int64) (string, error) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "target")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	return dir, unpack(root, bytes.NewReader(data), int64(len(data)), maxBytes)
}

func TestUnpackTrustsNothing(t *testing.T) {
	for _, c := range []struct {
		name    string
		entries []entry
		code    sandbox.Code
	}{
		{"parent", []entry{{"../out", 0o644, "x"}}, sandbox.CodeInvalid},
		{"absolute", []entry{{"/tmp/out", 0o644, "x"}}, sandbox.CodeInvalid},
		{"parent in the middle", []entry{{"a/../../out", 0o644, "x"}}, sandbox.CodeInvalid},
		{"empty", []entry{{"", 0o644, "x"}}, sandbox.CodeInvalid},
		{"bomb", []entry{{"a", 0o644, strings.Repeat("0", 2000)}}, sandbox.CodeTooLarge},
		{"bomb in parts", []entry{{"a", 0o644, strings.Repeat("0", 600)}, {"b", 0o644, strings.Repeat("0", 600)}}, sandbox.CodeTooLarge},
		{"link without a target", []entry{{"l", fs.ModeSymlink | 0o777, ""}}, sandbox.CodeInvalid},
		{"link with a NUL", []entry{{"l", fs.ModeSymlink | 0o777, "a\x00b"}}, sandbox.CodeInvalid},
		{"link with a long target", []entry{{"l", fs.ModeSymlink | 0o777, strings.Repeat("x", 5000)}}, sandbox.CodeInvalid},
		{"link that leads out, and a file behind it", []entry{{"l", fs.ModeSymlink | 0o777, ".."}, {"l/out", 0o644, "x"}}, sandbox.CodeInternal},
		{"link outside", []entry{{"../out", fs.ModeSymlink | 0o777, "x"}}, sandbox.CodeInvalid},
		{"good", []entry{{"d/", fs.ModeDir | 0o755, ""}, {"d/a", 0o4755, "x"}, {"l", fs.ModeSymlink | 0o777, "/etc/passwd"}, {"p", fs.ModeNamedPipe | 0o644, ""}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, err := unpackInto(t, zipOf(t, c.entries...), 1000)
			if sandbox.CodeOf(err) != c.code {
				t.Errorf("got %v, want %q", err, c.code)
			}
			if _, err := os.Stat(filepath.Join(dir, "..", "out")); err == nil {
				t.Error("a file is outside of the directory")
			}
			if _, err := os.Lstat(filepath.Join(dir, "p")); err == nil {
				t.Error("a pipe was made")
			}
			if target, err := os.Readlink(filepath.Join(dir, "l")); c.name == "good" && (err != nil || target != "/etc/passwd") {
				t.Errorf("the link is %q, %v", target, err)
			}
			if info, err := os.Stat(filepath.Join(dir, "d", "a")); err == nil && info.Mode() != 0o755 {
				t.Errorf("mode %v, want 0755", info.Mode())
			}
		})
	}
	if _, err := unpackInto(t, []byte("no archive"), 1000); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("no archive: %v", err)
	}
}

// A second copy into the same directory writes to no file that a link of the
// first one leads to.
func TestUnpackOverLinks(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, data := range [][]byte{
		zipOf(t, entry{"l", fs.ModeSymlink | 0o777, "victim"}),
		zipOf(t, entry{"l", 0o644, "theirs"}),
		zipOf(t, entry{"l", fs.ModeSymlink | 0o777, "elsewhere"}),
	} {
		if err := unpack(root, bytes.NewReader(data), int64(len(data)), 1000); err != nil {
			t.Fatal(err)
		}
	}
	if data, err := os.ReadFile(victim); err != nil || string(data) != "mine" {
		t.Errorf("the file that the link led to has %q, %v", data, err)
	}
	if target, err := os.Readlink(filepath.Join(dir, "l")); err != nil || target != "elsewhere" {
		t.Errorf("the link is %q, %v", target, err)
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(zipOf(f, entry{"d/", fs.ModeDir | 0o755, ""}, entry{"d/a", 0o644, "text"}))
	f.Add(zipOf(f, entry{"../out", 0o644, "x"}))
	f.Add(zipOf(f, entry{"l", fs.ModeSymlink | 0o777, ".."}, entry{"l/out", 0o644, "x"}, entry{"l/m", fs.ModeSymlink | 0o777, "x"}))
	f.Add([]byte("PK\x05\x06"))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir, _ := unpackInto(t, data, 1<<16)
		siblings, err := os.ReadDir(filepath.Dir(dir))
		if err != nil || len(siblings) != 1 {
			t.Fatalf("beside the directory: %v, %v", siblings, err)
		}
	})
}

func TestFilesAppearWholeOrNotAtAll(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "f")
	if err := os.WriteFile(target, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := &brokenReader{}
	if err := writeWhole(target, broken, 0o644); err == nil {
		t.Error("a broken copy is no error")
	}
	if data, err := os.ReadFile(target); err != nil || string(data) != "old" {
		t.Errorf("the file holds %q, %v", data, err)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("left behind: %v, %v", names, err)
	}
}

type brokenReader struct{ sent bool }

func (b *brokenReader) Read(p []byte) (int, error) {
	if b.sent {
		return 0, os.ErrClosed
	}
	b.sent = true
	return copy(p, "half"), nil
}

func TestDaemonKeepsNoSecretsOfItsClients(t *testing.T) {
	got := withoutSecrets([]string{"A=1", "COVE_API_KEY=x", "COVE_URL=y", "COVE_LISTEN=z"})
	if diff := cmp.Diff([]string{"A=1", "COVE_LISTEN=z"}, got); diff != "" {
		t.Errorf("differs (-want +got):\n%s", diff)
	}
}

// Every command explains itself.
func TestHelp(t *testing.T) {
	a := &app{Program: Program{Env: func(string) string { return "" }}}
	root := a.command()
	for _, cmd := range root.Commands() {
		if cmd.Hidden || cmd.Name() == "help" || cmd.Name() == "completion" || cmd.IsAdditionalHelpTopicCommand() {
			continue
		}
		if cmd.HasSubCommands() {
			for _, sub := range cmd.Commands() {
				if sub.Short == "" || sub.Example == "" {
					t.Errorf("%s has no description or example", sub.CommandPath())
				}
			}
			continue
		}
		if cmd.Short == "" || cmd.Example == "" {
			t.Errorf("%s has no description or example", cmd.CommandPath())
		}
	}
}

// Descriptions of commands and flags are phrases that begin with a capital letter.
func TestHelpIsUniform(t *testing.T) {
	a := &app{Program: Program{Env: func(string) string { return "" }}}
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		uniform := func(what, text string) {
			if first, _ := utf8.DecodeRuneInString(text); !unicode.IsUpper(first) || strings.HasSuffix(text, ".") {
				t.Errorf("%s: %s: %q does not begin with a capital letter, or ends with a period", cmd.CommandPath(), what, text)
			}
		}
		if !cmd.Hidden {
			uniform("description", cmd.Short)
			cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { uniform("--"+f.Name, f.Usage) })
		}
		for _, sub := range cmd.Commands() {
			check(sub)
		}
	}
	check(a.command())
}

func TestUnknownFlagOfEveryCommandIsAUsageError(t *testing.T) {
	for _, command := range []string{"ls", "get", "create", "exec", "run", "cp", "kill", "logs", "serve", "mcp", "version", "doctor", "stats", "update", "audit", "key ls", "key create", "key revoke", "template ls", "template build", "pause", "resume", "fork", "diff", "merge", "try", "snapshot create", "snapshot ls", "snapshot get", "snapshot restore", "snapshot rm"} {
		var out, errs bytes.Buffer
		code := Run(context.Background(), Program{
			Args: append(strings.Fields(command), "--no-such-flag"), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
			Env: func(string) string { return "" },
		})
		if code != exitUsage || !strings.Contains(errs.String(), "cove: unknown flag: --no-such-flag\nRun 'cove "+command+" --help' for more information.\n") || out.Len() > 0 {
			t.Errorf("%s: code %d, said %q", command, code, errs.String())
		}
	}
}

// Who does not know a program asks it by this flag.
func TestVersionFlag(t *testing.T) {
	var out, errs bytes.Buffer
	code := Run(t.Context(), Program{Args: []string{"--version"}, Version: "1.2.3", Stdout: &out, Stderr: &errs, Env: func(string) string { return "" }})
	if code != 0 || out.String() != "cove version 1.2.3\n" || errs.Len() > 0 {
		t.Errorf("code %d, said %q, %q", code, out.String(), errs.String())
	}
}

func TestTablesFit(t *testing.T) {
	id := "sbx-" + strings.Repeat("x", 26)
	rows := func() [][]string {
		return [][]string{{"ID", "STATE", "REASON"}, {id, "failed", "its supervisor exited unexpectedly while the daemon was down, and nothing was kept"}}
	}
	width := func(rows [][]string) int {
		return utf8.RuneCountInString(strings.Join(rows[1], "  "))
	}
	for room, want := range map[int]int{200: width(rows()), 80: 80, 77: 77, 20: width(rows())} {
		got := rows()
		fitted(room, got)
		if width(got) > want || got[1][0] != id || got[1][1] != "failed" {
			t.Errorf("in %d columns: %q", room, got)
		}
		if room == 80 && !strings.HasSuffix(got[1][2], "…") {
			t.Errorf("a cell was cut without a sign: %q", got[1][2])
		}
	}
}

// TestVersionsDiffer checks the warning that a daemon has another version, which says
// what to do.
func TestVersionsDiffer(t *testing.T) {
	var out bytes.Buffer
	a := &app{Program: Program{Stderr: &out, Version: "2.0"}}
	a.compareVersion("2.0")
	if out.Len() > 0 {
		t.Errorf("of the same version it says %q", out.String())
	}
	a.compareVersion("1.0\x1b[2J")
	if got := out.String(); !strings.Contains(got, "1.0") || !strings.Contains(got, "cove daemon restart") || strings.Contains(got, "\x1b") {
		t.Errorf("of another version it says %q", got)
	}
	out.Reset()
	a.globals.URL = "https://cove.example.com"
	a.compareVersion("1.0")
	if out.Len() > 0 {
		t.Errorf("of a server far away it says %q", out.String())
	}
}
