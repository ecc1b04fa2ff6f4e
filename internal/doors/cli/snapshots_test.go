package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/doors/rest"
	"github.com/cove-sh/cove/sandbox"
)

// kept is a service that records the arguments of the verbs of time, and answers as the
// test says.
type kept struct {
	sandbox.Service
	heard  []string
	diff   sandbox.Diff
	merge  sandbox.MergeResult
	result sandbox.TryResult
	// waits lets a try go on until it is cancelled, which closes waits.
	waits chan struct{}
}

// hear notes a call as its verb and its arguments in JSON.
func (k *kept) hear(verb string, args ...any) {
	text := verb
	for _, arg := range args {
		data, err := json.Marshal(arg)
		if err != nil {
			panic(err)
		}
		text += " " + string(data)
	}
	k.heard = append(k.heard, text)
}

// answer returns a sandbox for every name but "none".
func answer(name string) (*sandbox.Sandbox, error) {
	if name == "none" {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no sandbox %q; see what there is", name)
	}
	at := time.Now().Add(-time.Hour)
	later := at.Add(90 * time.Second)
	return &sandbox.Sandbox{
		ID: "sbx-" + name, Namespace: "default", State: sandbox.StatePaused, Template: "host", ForkedFrom: "sbx-parent", Snapshot: "snp-1", MadeFrom: &sandbox.MadeFrom{SandboxID: "sbx-source", Snapshot: "snp-0", StateAt: at}, History: 3, PausedAt: &at, CreatedAt: at,
		Moments: []sandbox.Moment{
			{Kind: sandbox.MomentPaused, At: at, Until: &later},
			{Kind: sandbox.MomentRestored, At: at, SandboxID: "sbx-" + name, Snapshot: "snp-1", StateAt: &later},
			{Kind: sandbox.MomentMerged, At: at, SandboxID: "sbx-won", Merge: sandbox.MergeFiles},
			{Kind: sandbox.MomentPaused, At: later},
		},
	}, nil
}

func (k *kept) Create(_ context.Context, req sandbox.CreateRequest) (*sandbox.Sandbox, error) {
	k.hear("Create", req)
	return answer("new")
}

func (k *kept) Get(_ context.Context, name string) (*sandbox.Sandbox, error) { return answer(name) }

func (k *kept) List(context.Context, sandbox.ListRequest) (*sandbox.List[sandbox.Sandbox], error) {
	sb, err := answer("work")
	return &sandbox.List[sandbox.Sandbox]{Items: []sandbox.Sandbox{*sb}}, err
}

func (k *kept) Update(_ context.Context, name string, req sandbox.UpdateRequest) (*sandbox.Sandbox, error) {
	k.hear("Update", name, req)
	return answer(name)
}

func (k *kept) Pause(_ context.Context, name string) (*sandbox.Sandbox, error) {
	k.hear("Pause", name)
	return answer(name)
}

func (k *kept) Resume(_ context.Context, name string, req sandbox.ResumeRequest) (*sandbox.Sandbox, error) {
	k.hear("Resume", name, req)
	return answer(name)
}

func (k *kept) Fork(_ context.Context, name string, req sandbox.ForkRequest) (*sandbox.List[sandbox.Sandbox], error) {
	k.hear("Fork", name, req)
	list := &sandbox.List[sandbox.Sandbox]{}
	for i := range req.Count {
		list.Items = append(list.Items, sandbox.Sandbox{ID: fmt.Sprintf("sbx-child%d", i)})
	}
	return list, nil
}

func (k *kept) CreateSnapshot(_ context.Context, name string, req sandbox.CreateSnapshotRequest) (*sandbox.Snapshot, error) {
	k.hear("CreateSnapshot", name, req)
	return &sandbox.Snapshot{ID: "snp-1"}, nil
}

func (k *kept) GetSnapshot(_ context.Context, name string) (*sandbox.Snapshot, error) {
	return &sandbox.Snapshot{ID: "snp-1", Name: name, SandboxID: "sbx-work", Kind: sandbox.SnapshotMemory, Automatic: true, Label: "make\nforged: x", SizeBytes: 2048}, nil
}

func (k *kept) ListSnapshots(_ context.Context, req sandbox.ListSnapshotsRequest) (*sandbox.List[sandbox.Snapshot], error) {
	k.hear("ListSnapshots", req)
	now := time.Now()
	if req.Cursor != "" {
		return &sandbox.List[sandbox.Snapshot]{Items: []sandbox.Snapshot{{ID: "snp-1", SandboxID: "sbx-a", Kind: "memory", Automatic: true, Label: "make", CreatedAt: now}}}, nil
	}
	return &sandbox.List[sandbox.Snapshot]{NextCursor: "c", Items: []sandbox.Snapshot{
		{ID: "snp-4", SandboxID: "sbx-a", Kind: "memory", Automatic: true, Label: "rm -rf\n/", SizeBytes: 3 << 20, CreatedAt: now},
		{ID: "snp-3", SandboxID: "sbx-b", Kind: "memory", Automatic: true, Label: "ls", CreatedAt: now},
		{ID: "snp-2", SandboxID: "sbx-a", Kind: "files", Name: "good", CreatedAt: now},
	}}, nil
}

func (k *kept) RestoreSnapshot(_ context.Context, name string, req sandbox.RestoreRequest) (*sandbox.Sandbox, error) {
	k.hear("RestoreSnapshot", name, req)
	return answer(name)
}

func (k *kept) DeleteSnapshot(_ context.Context, name string) (*sandbox.Snapshot, error) {
	k.hear("DeleteSnapshot", name)
	if name == "none" {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no snapshot %q", name)
	}
	return &sandbox.Snapshot{ID: "snp-" + name}, nil
}

func (k *kept) Diff(_ context.Context, name string, req sandbox.DiffRequest) (*sandbox.Diff, error) {
	k.hear("Diff", name, req)
	return &k.diff, nil
}

func (k *kept) Merge(_ context.Context, name string, req sandbox.MergeRequest) (*sandbox.MergeResult, error) {
	k.hear("Merge", name, req)
	return &k.merge, nil
}

func (k *kept) Try(ctx context.Context, name string, req sandbox.TryRequest, sink func(sandbox.TryEvent) error) (*sandbox.TryResult, error) {
	k.hear("Try", name, req)
	for i, at := range k.result.Attempts {
		if err := sink(sandbox.TryEvent{Attempt: at, Done: i + 1, Total: len(k.result.Attempts)}); err != nil {
			return nil, err
		}
	}
	if k.waits != nil {
		<-ctx.Done()
		close(k.waits)
		return nil, ctx.Err()
	}
	return &k.result, nil
}

// outcomeOf is the result of a command line.
type outcomeOf struct {
	Code        int
	Out, Errors string
}

// line runs a command line, split at spaces, against a service.
func line(ctx context.Context, t *testing.T, svc sandbox.Service, command ...string) outcomeOf {
	t.Helper()
	return lineOf(ctx, t, svc, "", command...)
}

// lineWith is line with standard input.
func lineWith(t *testing.T, svc sandbox.Service, stdin string, command ...string) outcomeOf {
	t.Helper()
	return lineOf(t.Context(), t, svc, stdin, command...)
}

func lineOf(ctx context.Context, t *testing.T, svc sandbox.Service, stdin string, command ...string) outcomeOf {
	t.Helper()
	srv := httptest.NewServer(rest.New(rest.Config{Service: svc}))
	defer srv.Close()
	var out, errs bytes.Buffer
	code := Run(ctx, Program{
		Args: command, Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs,
		Env: func(name string) string { return map[string]string{"COVE_URL": srv.URL}[name] },
	})
	return outcomeOf{code, out.String(), errs.String()}
}

func TestTimeCommandsPassEverythingOn(t *testing.T) {
	for _, c := range []struct {
		line  string
		heard string
	}{
		{"pause a", `Pause "a"`},
		{"resume a", `Resume "a" {}`},
		{"resume --files-only a", `Resume "a" {"files_only":true}`},
		{"fork a", `Fork "a" {"count":1}`},
		{
			"fork a -n 3 --name x -e K=V=W -m a=b --lifetime 0 --idle-timeout 90s",
			`Fork "a" {"count":3,"name":"x","env":{"K":"V=W"},"metadata":{"a":"b"},"lifetime_seconds":0,"idle_timeout_seconds":90}`,
		},
		{"snapshot create a", `CreateSnapshot "a" {}`},
		{"snapshot create a --label then", `CreateSnapshot "a" {"label":"then"}`},
		{"snapshot create a --name x --files-only", `CreateSnapshot "a" {"name":"x","kind":"files"}`},
		{"snapshot restore a x", `RestoreSnapshot "a" {"snapshot":"x"}`},
		{"snapshot restore a --step -2", `RestoreSnapshot "a" {"step":-2}`},
		{"snapshot rm x", `DeleteSnapshot "x"`},
		{"diff a", `Diff "a" {}`},
		{"diff a b --path /x --path /y,z -p --limit 5", `Diff "a" {"against":"b","paths":["/x","/y,z"],"patch":true,"limit":5}`},
		{"merge a b", `Merge "a" {"winner":"b","kind":"whole"}`},
		{
			"merge a b --files --policy theirs --path /x --path /y --kill-winner",
			`Merge "a" {"winner":"b","kind":"files","policy":"theirs","paths":["/x","/y"],"kill_winner":true}`,
		},
		{
			"merge a b --files --ours /x --theirs /y --theirs /z,1",
			`Merge "a" {"winner":"b","kind":"files","resolve":{"/x":"ours","/y":"theirs","/z,1":"theirs"}}`,
		},
		{"try a -- ls -l", `Try "a" {"commands":[{"command":["ls","-l"]}]}`},
		{"try a -- sh -- -n 5", `Try "a" {"commands":[{"command":["sh","--","-n","5"]}]}`},
		{
			"try -n 5 a --pick 2 --merge files --policy ours --keep winners --timeout 1500ms --no-diff -e A=1 -u root -w /x -- true",
			`Try "a" {"count":5,"commands":[{"command":["true"],"env":{"A":"1"},"workdir":"/x","user":"root"}],"timeout_ms":1500,"pick":"2","merge":"files","policy":"ours","keep":"winners","no_diff":true}`,
		},
		{"try a -c one,two --shell three -e A=1", `Try "a" {"commands":[{"shell":"one,two","env":{"A":"1"}},{"shell":"three","env":{"A":"1"}}]}`},
		{"create --snapshot x --history 5 --on-timeout pause", `Create {"on_timeout":"pause","snapshot":"x","history":5}`},
		{"update a --history 0 --on-timeout pause", `Update "a" {"on_timeout":"pause","history":0}`},
		{"create --on-timeout pause --paused-lifetime 2h", `Create {"on_timeout":"pause","paused_lifetime_seconds":7200}`},
		{"update a --paused-lifetime 0", `Update "a" {"paused_lifetime_seconds":0}`},
		{"update a --history 7", `Update "a" {"history":7}`},
	} {
		k := &kept{merge: sandbox.MergeResult{Merged: true}, result: sandbox.TryResult{Picked: new(int)}}
		got := line(t.Context(), t, k, strings.Fields(c.line)...)
		if got.Code != 0 || len(k.heard) != 1 || k.heard[0] != c.heard {
			t.Errorf("%s: code %d, %s\ngot  %s\nwant %s", c.line, got.Code, got.Errors, k.heard, c.heard)
		}
	}
}

func TestTimeCommandsRefuse(t *testing.T) {
	for command, says := range map[string]string{
		"pause":                          "missing argument",
		"fork a b":                       `unexpected argument "b"`,
		"fork a -n 0":                    "1 to 32",
		"fork a -n five":                 "invalid argument",
		"snapshot restore a":             "but not both",
		"snapshot restore a x --step -1": "but not both",
		"diff":                           "missing argument",
		"merge a":                        "missing argument",
		"merge a b c":                    `unexpected argument "c"`,
		"merge a b --files --ours /x --theirs /x": `"/x" is given with both --ours and --theirs`,
		"try":                             "missing argument",
		"try a":                           "pass either a command",
		"try a ls":                        `unexpected argument "ls"; put --`,
		"try a b -- ls":                   `unexpected argument "b"`,
		"try -- ls":                       "missing sandbox",
		"try a -c x -- ls":                "pass either a command",
		"try a --timeout x -- ls":         "invalid argument",
		"snapshot nosuch":                 "unknown command",
		"create --history many":           "invalid argument",
		"resume a --files-only=perhaps":   "invalid argument",
		"ps a --kill abc":                 "not a process id; list the processes with cove ps",
		"ps a --kill 0":                   "not a process id",
		"snapshot ls a b":                 `unexpected argument "b"`,
		"snapshot create a --no-such":     "unknown flag",
		"fork a --lifetime 1500ms":        "whole number of seconds",
		"merge a b --files --metadata x=": "unknown flag",
	} {
		k := &kept{}
		got := line(t.Context(), t, k, strings.Fields(command)...)
		if got.Code != exitUsage || !strings.Contains(got.Errors, says) || len(k.heard) > 0 {
			t.Errorf("%s: code %d, said %q, the service heard %q; want %q", command, got.Code, got.Errors, k.heard, says)
		}
	}
}

func TestManyAreAllTried(t *testing.T) {
	for _, verb := range []string{"pause", "resume", "snapshot rm"} {
		k := &kept{}
		got := line(t.Context(), t, k, append(strings.Fields(verb), "none", "b", "none", "c")...)
		prefix := "sbx-"
		if verb == "snapshot rm" {
			prefix = "snp-"
		}
		if got.Code != exitError || got.Out != prefix+"b\n"+prefix+"c\n" || strings.Count(got.Errors, "there is no") != 2 || len(k.heard) != 4 {
			t.Errorf("%s: %+v", verb, got)
		}
	}
	got := line(t.Context(), t, &kept{}, "fork", "a", "-n", "2", "--json")
	var list struct {
		Version int               `json:"schema_version"`
		Items   []sandbox.Sandbox `json:"items"`
	}
	if err := json.Unmarshal([]byte(got.Out), &list); err != nil || list.Version != 1 || len(list.Items) != 2 || list.Items[1].ID != "sbx-child1" {
		t.Errorf("%+v, %v", got, err)
	}
	if got := line(t.Context(), t, &kept{}, "fork", "a", "-n", "2"); got.Out != "sbx-child0\nsbx-child1\n" {
		t.Errorf("%+v", got)
	}
}

func TestSnapshotListing(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"snapshot ls -q", "snp-4\nsnp-3\nsnp-2\nsnp-1\n"},
		{"snapshot ls", `
ID     NAME  SANDBOX  KIND    SIZE     AGE
snp-4  -     sbx-a    memory  3.0 MiB  0s
snp-3  -     sbx-b    memory  0 B      0s
snp-2  good  sbx-a    files   0 B      0s
snp-1  -     sbx-a    memory  0 B      0s
`},
		{"snapshot ls -a", `
ID     NAME  SANDBOX  KIND    SIZE     AGE  STEP  BEFORE
snp-4  -     sbx-a    memory  3.0 MiB  0s   -1    rm -rf /
snp-3  -     sbx-b    memory  0 B      0s   -1    ls
snp-2  good  sbx-a    files   0 B      0s   -     -
snp-1  -     sbx-a    memory  0 B      0s   -2    make
`},
		{"ls", `
ID        NAME  STATE   TEMPLATE  FROM        AGE  EXPIRES  REASON
sbx-work  -     paused  host      sbx-parent  60m  -        -
`},
	} {
		k := &kept{}
		got := line(t.Context(), t, k, strings.Fields(c.line)...)
		if diff := cmp.Diff(strings.TrimPrefix(c.want, "\n"), got.Out); diff != "" || got.Code != 0 {
			t.Errorf("%s: code %d, %s (-want +got):\n%s", c.line, got.Code, got.Errors, diff)
		}
	}
	k := &kept{}
	line(t.Context(), t, k, "snapshot", "ls", "work", "--automatic")
	want := []string{`ListSnapshots {"sandbox":"work","automatic":true,"limit":1000}`, `ListSnapshots {"sandbox":"work","automatic":true,"limit":1000,"cursor":"c"}`}
	if diff := cmp.Diff(want, k.heard); diff != "" {
		t.Errorf("differs (-want +heard):\n%s", diff)
	}
	for _, verb := range []string{"get", "inspect"} {
		got := line(t.Context(), t, k, "snapshot", verb, "good")
		for _, want := range []string{"id:  ", "name:       good\n", "automatic:  yes\n", `make\nforged: x` + "\n", "2.0 KiB"} {
			if !strings.Contains(got.Out, want) {
				t.Errorf("snapshot %s says\n%s\nwithout %q", verb, got.Out, want)
			}
		}
	}
	got := line(t.Context(), t, k, "get", "work")
	sb, err := answer("work")
	if err != nil {
		t.Fatal(err)
	}
	now := stamp(&sb.CreatedAt)[:16] // to the minute
	for _, want := range []string{
		"state:         paused\n", "forked from:   sbx-parent\n", "snapshot:      snp-1\n", "made from:     snp-0 of sbx-source, 20", "history:       3 steps\n",
		"paused:        " + now, ", for 90s\n", "restored:      " + now, ", to snp-1 of 20", "merged:        " + now, ", files of sbx-won\n",
	} {
		if !strings.Contains(got.Out, want) {
			t.Errorf("get says\n%s\nwithout %q", got.Out, want)
		}
	}
}

// someChanges are of every kind, with what a sandbox might do to a terminal.
func someChanges() []sandbox.Change {
	return []sandbox.Change{
		{Path: "/new", Kind: sandbox.ChangeAdded, Type: sandbox.TypeFile, NewSize: 2048, NewMode: "0644", Patch: "--- /dev/null\n+++ /new\n@@ -0,0 +1 @@\n+x\r\n"},
		{Path: "/old", Kind: sandbox.ChangeRemoved, Type: sandbox.TypeDirectory, OldMode: "0755"},
		{Path: "/a\nD /etc\x1b[2J", Kind: sandbox.ChangeModified, Type: sandbox.TypeFile, Aspects: []sandbox.Aspect{sandbox.AspectContent, sandbox.AspectMode}, OldSize: 1, NewSize: 2, OldMode: "0644", NewMode: "0600"},
		{Path: "/link", Kind: sandbox.ChangeModified, Type: sandbox.TypeSymlink, Aspects: []sandbox.Aspect{sandbox.AspectTarget}},
		{Path: "/odd", Kind: "moved"},
	}
}

func TestDiffOutput(t *testing.T) {
	diff := sandbox.Diff{Changes: someChanges(), Added: 1, Removed: 1, Modified: 3, Truncated: true}
	for _, c := range []struct {
		line, want string
		code       int
	}{
		{"diff a", `
A /new
--- /dev/null
+++ /new
@@ -0,0 +1 @@
+x` + "\r" + `
D /old
M /a\nD /etc\u001b[2J (content, mode)
M /link (target)
? /odd
`, 0},
		{"diff a --stat --exit-code", `
A /new  2.0 KiB, 0644
--- /dev/null
+++ /new
@@ -0,0 +1 @@
+x` + "\r" + `
D /old  0755
M /a\nD /etc\u001b[2J (content, mode)  1 B -> 2 B, 0644 -> 0600
M /link (target)
? /odd
1 added, 1 removed, 3 modified
`, 1},
	} {
		got := line(t.Context(), t, &kept{diff: diff}, strings.Fields(c.line)...)
		if d := cmp.Diff(strings.TrimPrefix(c.want, "\n"), got.Out); d != "" || got.Code != c.code {
			t.Errorf("%s: code %d, %s (-want +got):\n%s", c.line, got.Code, got.Errors, d)
		}
		if want := "cove: showing the first 5 of 5 changes; show more with --limit\n"; got.Errors != want {
			t.Errorf("%s: said %q", c.line, got.Errors)
		}
	}
	if got := line(t.Context(), t, &kept{}, "diff", "a", "--exit-code"); got != (outcomeOf{}) {
		t.Errorf("no changes: %+v", got)
	}
	got := line(t.Context(), t, &kept{diff: diff}, "diff", "a", "--json", "--exit-code")
	var back sandbox.Diff
	if err := json.Unmarshal([]byte(got.Out), &back); err != nil || got.Code != 1 || !cmp.Equal(back, diff) {
		t.Errorf("JSON: %+v, %v", got, err)
	}
}

func TestMergeOutput(t *testing.T) {
	conflicts := []sandbox.Conflict{{Path: "/x\n", Ours: sandbox.ChangeModified, Theirs: sandbox.ChangeRemoved}}
	says := "cove: nothing was merged: both sides changed the same paths (1); use --policy ours to keep the parent's or --policy theirs to take the winner's, or decide for each path with --ours and --theirs\n"
	for _, c := range []struct {
		name   string
		result sandbox.MergeResult
		want   outcomeOf
	}{
		{"whole", sandbox.MergeResult{Merged: true, Kind: sandbox.MergeWhole, Sandbox: &sandbox.Sandbox{ID: "sbx-1"}}, outcomeOf{0, "sbx-1\n", ""}},
		{"files", sandbox.MergeResult{Merged: true, Kind: sandbox.MergeFiles, Applied: someChanges()[1:2]}, outcomeOf{0, "D /old\n", ""}},
		{"conflicts", sandbox.MergeResult{Kind: sandbox.MergeFiles, Conflicts: conflicts}, outcomeOf{1, "C /x\\n (parent modified, winner removed)\n", says}},
	} {
		if got := line(t.Context(), t, &kept{merge: c.result}, "merge", "a", "b"); got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
		got := line(t.Context(), t, &kept{merge: c.result}, "merge", "a", "b", "--json")
		var back sandbox.MergeResult
		if err := json.Unmarshal([]byte(got.Out), &back); err != nil || got.Code != c.want.Code || !cmp.Equal(back, c.result) {
			t.Errorf("%s: JSON %+v, %v", c.name, got, err)
		}
	}
}

func TestTryOutput(t *testing.T) {
	attempts := []sandbox.Attempt{
		{Index: 0, SandboxID: "sbx-0", ExitCode: 1, Stderr: "no\n", DurationMS: 1500, Changes: &sandbox.Diff{Added: 3, Removed: 1, Modified: 2}},
		{Index: 1, SandboxID: "sbx-1", Stdout: "yes", DurationMS: 20, Changes: &sandbox.Diff{}, OutputTruncated: true},
		{Index: 2, SandboxID: "sbx-2", EndCause: sandbox.EndTimeout, ExitCode: 137, Signal: "KILL", DurationMS: 60_000, Kept: true},
		{Index: 3, SandboxID: "sbx-3", Error: "the fork\nfailed"},
	}
	picked := 1
	result := sandbox.TryResult{Attempts: attempts, Picked: &picked, Merge: &sandbox.MergeResult{Merged: true}}
	told := `cove: attempt 0: exit 1 after 1.5s (1 of 4)
cove: attempt 1: exit 0 after 20ms (2 of 4)
cove: attempt 2: timeout after 1m0s (3 of 4)
cove: attempt 3: the fork\nfailed after 0s (4 of 4)
`
	table := `ATTEMPT  RESULT            TIME  CHANGES   KEPT   MERGED
0        exit 1            1.5s  +3 -1 ~2  -      -
1        exit 0            20ms  +0 -0 ~0  -      %-s
2        timeout           1m0s  -         sbx-2  -
3        the fork\nfailed  0s    -         -      -
`
	want := outcomeOf{0, fmt.Sprintf(table, "picked"), told}
	if diff := cmp.Diff(want, line(t.Context(), t, &kept{result: result}, "try", "a", "--", "x")); diff != "" {
		t.Errorf("differs (-want +got):\n%s", diff)
	}
	want.Out += "\n==> attempt 0: stderr <==\nno\n\n==> attempt 1: stdout <==\nyes\n\n==> attempt 1: output truncated <==\n"
	if diff := cmp.Diff(want, line(t.Context(), t, &kept{result: result}, "try", "a", "--output", "--", "x")); diff != "" {
		t.Errorf("with output differs (-want +got):\n%s", diff)
	}
	got := line(t.Context(), t, &kept{result: result}, "try", "a", "--json", "--", "x")
	var back sandbox.TryResult
	if err := json.Unmarshal([]byte(got.Out), &back); err != nil || got.Code != 0 || !cmp.Equal(back, result) || got.Errors != told {
		t.Errorf("JSON: %+v, %v", got, err)
	}
	result.Merge = &sandbox.MergeResult{Kind: sandbox.MergeFiles, Conflicts: []sandbox.Conflict{{Path: "/x", Ours: "added", Theirs: "added"}}}
	got = line(t.Context(), t, &kept{result: result}, "try", "a", "--pick", "1", "--", "x")
	if wantOut := fmt.Sprintf(table, "conflicts") + "C /x (parent added, winner added)\n"; got.Code != exitError || got.Out != wantOut || !strings.Contains(got.Errors, "--policy theirs") {
		t.Errorf("conflicts: %+v", got)
	}
	for pick, says := range map[string]string{"": "", "none": "", "first_success": "no attempt exited with code 0", "2": "attempt 2 was not merged"} {
		got := line(t.Context(), t, &kept{}, "try", "a", "--pick", pick, "--", "x")
		if (got.Code == exitError) != (says != "") || !strings.Contains(got.Errors, says) {
			t.Errorf("pick %q and nothing merged: %+v", pick, got)
		}
	}
}

func TestInterruptedTryEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	k := &kept{waits: make(chan struct{}), result: sandbox.TryResult{Attempts: []sandbox.Attempt{{}}}}
	svc := interrupting{k, cancel}
	got := line(ctx, t, svc, "try", "a", "--", "x")
	if got.Code != 128+int(syscall.SIGINT) || !strings.Contains(got.Errors, "cove: interrupted") {
		t.Errorf("got %+v", got)
	}
	// The server has closed, so its handlers have ended.
	select {
	case <-k.waits:
	default:
		t.Error("the try was not cancelled")
	}
}

// interrupting interrupts the command line as soon as an attempt is reported.
type interrupting struct {
	*kept
	cancel context.CancelFunc
}

func (s interrupting) Try(ctx context.Context, name string, req sandbox.TryRequest, sink func(sandbox.TryEvent) error) (*sandbox.TryResult, error) {
	return s.kept.Try(ctx, name, req, func(ev sandbox.TryEvent) error {
		defer s.cancel()
		return sink(ev)
	})
}

func TestErrorsOfTimeAreShownAsTheyAre(t *testing.T) {
	got := line(t.Context(), t, &kept{}, "snapshot", "restore", "none", "x")
	if want := (outcomeOf{exitError, "", "cove: there is no sandbox \"none\"; see what there is\n"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
