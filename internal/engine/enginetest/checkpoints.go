package enginetest

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/guest/agentclient"
	"github.com/cove-sh/cove/sandbox"
)

// RunCheckpoints runs the contract of [engine.Checkpointer] against engines that the
// subject opens, which must implement it.
func RunCheckpoints(t *testing.T, subject func(t *testing.T) Subject) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, *suite, engine.Checkpointer)
	}{
		{"GoesOn", testCheckpointGoesOn},
		{"Commit", testCheckpointCommit},
		{"CommitRefused", testCheckpointCommitRefused},
		{"CommitUndecided", testCheckpointCommitUndecided},
		{"SetAside", testSetAside},
		{"Portable", testPortable},
		{"Fork", testFork},
		{"FilesOnly", testFilesOnly},
		{"Changes", testChanges},
		{"Unknown", testCheckpointUnknown},
		{"Warm", testWarm},
	} {
		t.Run(c.name, func(t *testing.T) {
			sub := subject(t)
			spec := sub.Spec(t)
			spec.User, spec.WorkDir = "root", "/"
			sub.Spec = func(*testing.T) engine.Spec { return spec }
			s := newSuite(sub)
			e, ok := s.start(t).(engine.Checkpointer)
			if !ok {
				t.Fatal("the engine keeps no checkpoints")
			}
			c.run(t, s, e)
		})
	}
}

// counting starts a job that counts in memory and writes its count to a file on request,
// and that holds open a file that has no name any more.
const counting = `cd /run/count; echo precious > /root/gone; exec 9<>/root/gone; rm /root/gone
n=0; while :; do n=$((n+1)); [ -e ask ] && { read -r w < ask; rm ask; { echo $n; [ $w = after ] && cat <&9; } > tell.$w; }; sleep 0.01; done`

func startCounting(t *testing.T, c *agentclient.Client) {
	t.Helper()
	output(t, c, "mkdir -p /run/count")
	_, err := c.Exec(t.Context(), "", &sandbox.ExecRequest{Shell: counting, Background: true, TimeoutMS: -1}, nil)
	must(t, err)
	ask(t, c, "first")
}

// ask returns the count of the counting process.
func ask(t *testing.T, c *agentclient.Client, word string) int {
	t.Helper()
	out := output(t, c, fmt.Sprintf("cd /run/count 2>/dev/null || exit 7; echo %[1]s > ask.new; mv ask.new ask; for i in $(seq 1000); do [ -s tell.%[1]s ] && break; sleep 0.01; done; cat tell.%[1]s", word))
	var n int
	if _, err := fmt.Sscan(out, &n); err != nil {
		t.Fatalf("the counting process told %q: %v", out, err)
	}
	return n
}

func (s *suite) from(t *testing.T, id, checkpoint string) engine.Instance {
	t.Helper()
	spec := s.Spec(t)
	spec.ID, spec.Checkpoint, spec.Hostname = id, checkpoint, id
	ctx, cancel := context.WithTimeout(t.Context(), s.CreateTimeout)
	defer cancel()
	i, err := s.e.Create(ctx, spec)
	must(t, err)
	return i
}

func testCheckpointGoesOn(t *testing.T, s *suite, e engine.Checkpointer) {
	c := client(t, s.create(t, "sbx-one"))
	startCounting(t, c)
	began := time.Now()
	ck, err := e.Checkpoint(t.Context(), "sbx-one", "ckp-one", engine.CheckpointOptions{Durable: true})
	must(t, err)
	t.Logf("checkpoint of %d bytes in %s, stopped %s", ck.SizeBytes, time.Since(began), ck.Stopped)
	before := ask(t, c, "before")
	if ck.ID != "ckp-one" || ck.SizeBytes <= 0 || ck.CreatedAt.IsZero() || ck.FilesOnly || ck.Stopped <= 0 {
		t.Errorf("checkpoint is %+v", ck)
	}
	must(t, s.e.Destroy(t.Context(), "sbx-one"))
	began = time.Now()
	i := s.from(t, "sbx-two", "ckp-one")
	t.Logf("restored in %s", time.Since(began))
	c = client(t, i)
	if got := ask(t, c, "after"); got > before+1000 || got < 1 {
		t.Errorf("the count is %d, was %d", got, before)
	}
	if got := output(t, c, "hostname"); got != "sbx-two" {
		t.Errorf("the host name is %q", got)
	}
	if got := output(t, c, "cat /run/count/tell.after"); !strings.Contains(got, "precious") {
		t.Errorf("the file without a name holds %q", got)
	}
	if _, err := e.Checkpoint(t.Context(), "sbx-two", "ckp-one", engine.CheckpointOptions{}); err == nil {
		t.Error("a checkpoint's id was used twice")
	}
	ask(t, c, "again")
}

func testCheckpointCommit(t *testing.T, s *suite, e engine.Checkpointer) {
	c := client(t, s.create(t, "sbx-one"))
	startCounting(t, c)
	committed := false
	began := time.Now()
	_, err := e.Checkpoint(t.Context(), "sbx-one", "ckp-one", engine.CheckpointOptions{Durable: true, Commit: func(ck engine.Checkpoint) error {
		committed = ck.ID == "ckp-one"
		return nil
	}})
	must(t, err)
	t.Logf("paused in %s", time.Since(began))
	if !committed {
		t.Error("Commit was not called")
	}
	s.wantGone(t, "sbx-one")
	began = time.Now()
	i := s.from(t, "sbx-one", "ckp-one")
	t.Logf("resumed in %s", time.Since(began))
	ask(t, client(t, i), "after")
	must(t, e.RemoveCheckpoint(t.Context(), "ckp-one"))
	ask(t, client(t, i), "later")
}

// testSetAside checks that a checkpoint that was set aside is gone, and can be restored
// once it is back.
func testSetAside(t *testing.T, s *suite, e engine.Checkpointer) {
	c := client(t, s.create(t, "sbx-one"))
	startCounting(t, c)
	label := json.RawMessage(`{"a":"label"}`)
	before, err := e.Checkpoint(t.Context(), "sbx-one", "ckp-one", engine.CheckpointOptions{Durable: true, Label: label})
	must(t, err)
	aside := filepath.Join(t.TempDir(), "aside")
	must(t, e.SetAside(t.Context(), "ckp-one", aside))
	if list, err := e.Checkpoints(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("kept are %+v, %v", list, err)
	}
	if err := e.SetAside(t.Context(), "ckp-one", aside+"2"); err == nil {
		t.Error("what is not there was set aside")
	}
	back, err := e.BringBack(t.Context(), "ckp-one", aside)
	must(t, err)
	if back.ID != "ckp-one" || back.SizeBytes != before.SizeBytes || string(back.Label) != string(label) || back.Root.Digest != before.Root.Digest {
		t.Errorf("brought back %+v", back)
	}
	if _, err := e.BringBack(t.Context(), "ckp-one", aside); err == nil {
		t.Error("nothing was brought back")
	}
	ask(t, client(t, s.from(t, "sbx-two", "ckp-one")), "after")
}

// testPortable checks that a checkpoint that was copied away and removed comes back, and
// that nothing of it is left if a file cannot be had.
func testPortable(t *testing.T, s *suite, e engine.Checkpointer) {
	p, ok := e.(engine.Portable)
	if !ok {
		t.Skip("checkpoints of this engine cannot be copied")
	}
	c := client(t, s.create(t, "sbx-one"))
	startCounting(t, c)
	label := json.RawMessage(`{"a":"label"}`)
	before, err := p.Checkpoint(t.Context(), "sbx-one", "ckp-one", engine.CheckpointOptions{Durable: true, Label: label, Owner: "red"})
	must(t, err)
	out, err := p.Export(t.Context(), "ckp-one")
	must(t, err)
	defer out.Close()
	must(t, p.RemoveCheckpoint(t.Context(), "ckp-one"))
	files := map[string][]byte{}
	for _, f := range out.Files {
		data, err := io.ReadAll(f)
		must(t, err)
		if int64(len(data)) != f.Size {
			t.Errorf("%s has %d bytes instead of %d", f.Name, len(data), f.Size)
		}
		files[f.Name] = data
	}
	if _, err := p.Export(t.Context(), "ckp-one"); err == nil {
		t.Error("a checkpoint that is gone is copied")
	}
	refused := errors.New("refused")
	if _, err := p.Import(t.Context(), before, out.Description, func(engine.ExportFile, io.WriterAt) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("import without content: %v", err)
	}
	if list, err := p.Checkpoints(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("kept are %+v, %v", list, err)
	}
	fetch := func(f engine.ExportFile, to io.WriterAt) error {
		if f.Size != int64(len(files[f.Name])) {
			t.Errorf("%s is to have %d bytes", f.Name, f.Size)
		}
		_, err := to.WriteAt(files[f.Name], 0)
		return err
	}
	other := before
	other.ID = "ckp-other"
	if _, err := p.Import(t.Context(), other, out.Description, fetch); err == nil {
		t.Error("it comes back as another checkpoint")
	}
	back, err := p.Import(t.Context(), before, out.Description, fetch)
	must(t, err)
	if back.ID != "ckp-one" || back.SizeBytes != before.SizeBytes || string(back.Label) != string(label) || back.Owner != "red" || back.Root.Digest != before.Root.Digest {
		t.Errorf("came back as %+v", back)
	}
	if _, err := p.Import(t.Context(), before, out.Description, fetch); err == nil {
		t.Error("it came back twice")
	}
	for _, bad := range []string{"", "x", "{}", `{"manifest":{"format":1,"id":"../x"}}`} {
		if _, err := p.Import(t.Context(), before, []byte(bad), fetch); err == nil {
			t.Errorf("the description %q is taken", bad)
		}
	}
	s.start(t) // as after a restart
	ask(t, client(t, s.from(t, "sbx-two", "ckp-one")), "after")
}

func testCheckpointCommitRefused(t *testing.T, s *suite, e engine.Checkpointer) {
	c := client(t, s.create(t, "sbx-one"))
	startCounting(t, c)
	refused := errors.New("refused")
	_, err := e.Checkpoint(t.Context(), "sbx-one", "ckp-one", engine.CheckpointOptions{Commit: func(engine.Checkpoint) error { return refused }})
	if !errors.Is(err, refused) {
		t.Errorf("Checkpoint: %v, want the error of Commit", err)
	}
	ask(t, c, "after")
	list, err := e.Checkpoints(t.Context())
	must(t, err)
	if len(list) != 0 {
		t.Errorf("kept %+v", list)
	}
	s.wantStatus(t, "sbx-one", running)
}

// testCheckpointCommitUndecided checks that both the instance and the checkpoint stay if
// it is not known which one is wanted.
func testCheckpointCommitUndecided(t *testing.T, s *suite, e engine.Checkpointer) {
	c := client(t, s.create(t, "sbx-one"))
	startCounting(t, c)
	_, err := e.Checkpoint(t.Context(), "sbx-one", "ckp-one", engine.CheckpointOptions{Durable: true, Commit: func(engine.Checkpoint) error { return engine.ErrUndecided }})
	if !errors.Is(err, engine.ErrUndecided) {
		t.Errorf("Checkpoint: %v, want ErrUndecided", err)
	}
	ask(t, c, "after")
	must(t, s.e.Destroy(t.Context(), "sbx-one"))
	ask(t, client(t, s.from(t, "sbx-two", "ckp-one")), "later")
}

func testFork(t *testing.T, s *suite, e engine.Checkpointer) {
	c := client(t, s.create(t, "sbx-one"))
	startCounting(t, c)
	const children = 3
	for _, id := range []string{"ckp-one", "ckp-two"} {
		if id == "ckp-two" {
			c = client(t, s.from(t, "sbx-again", "ckp-one")) // a fork of a fork
		}
		_, err := e.Checkpoint(t.Context(), map[string]string{"ckp-one": "sbx-one", "ckp-two": "sbx-again"}[id], id, engine.CheckpointOptions{Early: true})
		must(t, err)
		began := time.Now()
		got := make([]engine.Instance, children)
		errs := make(chan error, children)
		for n := range children {
			go func() {
				spec := s.Spec(t)
				spec.ID, spec.Checkpoint = fmt.Sprintf("%s-%d", id, n), id
				spec.Fork = &engine.Fork{Index: n, Count: children, SandboxID: spec.ID, ParentID: "sbx-one"}
				var err error
				got[n], err = s.e.Create(t.Context(), spec)
				errs <- err
			}()
		}
		for range children {
			must(t, <-errs)
		}
		t.Logf("%d children in %s", children, time.Since(began))
		for n, i := range got {
			child := client(t, i)
			ask(t, child, "child")
			output(t, child, fmt.Sprintf("echo %d > /root/mine; echo %d > /tmp/mine", n, n))
		}
		for n, i := range got {
			child := client(t, i)
			if got := output(t, child, "cat /root/mine /tmp/mine; echo $COVE_FORK_INDEX/$COVE_FORK_COUNT"); got != fmt.Sprintf("%d\n%d\n%d/%d", n, n, n, children) {
				t.Errorf("child %d has %q", n, got)
			}
			if got := output(t, child, "cat /run/cove/fork.json"); !strings.Contains(got, fmt.Sprintf(`"index":%d`, n)) {
				t.Errorf("child %d is told %q", n, got)
			}
			must(t, s.e.Destroy(t.Context(), i.ID()))
		}
		if got := output(t, c, "ls /root/mine /tmp/mine 2>/dev/null | wc -l"); got != "0" {
			t.Errorf("the parent sees %s files of its children", got)
		}
		ask(t, c, "parent")
	}
}

func testFilesOnly(t *testing.T, s *suite, e engine.Checkpointer) {
	c := client(t, s.create(t, "sbx-one"))
	output(t, c, "echo kept > /root/kept; rm -f /etc/passwd-; mkdir -p /srv/a/b; ln -s b /srv/a/c; chmod 0700 /srv/a")
	ck, err := e.Checkpoint(t.Context(), "sbx-one", "ckp-files", engine.CheckpointOptions{FilesOnly: true, Durable: true})
	must(t, err)
	if !ck.FilesOnly {
		t.Errorf("checkpoint is %+v", ck)
	}
	spec := s.Spec(t)
	spec.ID, spec.Checkpoint, spec.FilesOnly = "sbx-two", "ckp-files", true
	i, err := s.e.Create(t.Context(), spec)
	must(t, err)
	if got := output(t, client(t, i), "cat /root/kept; readlink /srv/a/c; stat -c %a /srv/a; ls /etc/passwd- 2>/dev/null; true"); got != "kept\nb\n700" {
		t.Errorf("the files are %q", got)
	}
}

func testChanges(t *testing.T, s *suite, e engine.Checkpointer) {
	c := client(t, s.create(t, "sbx-one"))
	output(t, c, "echo changed > /root/changed; head -c 3000000 /dev/urandom > /root/large")
	_, err := e.Checkpoint(t.Context(), "sbx-one", "ckp-one", engine.CheckpointOptions{})
	must(t, err)
	output(t, c, "echo later > /root/later")
	for _, of := range []struct {
		engine.Source
		later bool
	}{
		{engine.Source{Instance: "sbx-one"}, true},
		{engine.Source{Checkpoint: "ckp-one"}, false},
	} {
		r, err := e.Changes(t.Context(), of.Source)
		must(t, err)
		names := map[string]int64{}
		tr := tar.NewReader(r)
		for {
			h, err := tr.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			must(t, err)
			names[strings.TrimPrefix(h.Name, "./")] = h.Size
		}
		must(t, r.Close())
		if _, later := names["root/later"]; names["root/changed"] != 8 || names["root/large"] != 3_000_000 || later != of.later {
			t.Errorf("changes of %+v are %v", of.Source, names)
		}
	}
	if got := output(t, c, "cat /root/changed"); got != "changed" {
		t.Errorf("afterwards the file holds %q", got)
	}
}

func testCheckpointUnknown(t *testing.T, s *suite, e engine.Checkpointer) {
	if _, err := e.Checkpoint(t.Context(), "sbx-none", "ckp-one", engine.CheckpointOptions{}); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("Checkpoint: %v, want ErrNotFound", err)
	}
	must(t, e.RemoveCheckpoint(t.Context(), "ckp-none"))
	spec := s.Spec(t)
	spec.ID, spec.Checkpoint = "sbx-one", "ckp-none"
	if _, err := s.e.Create(t.Context(), spec); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("Create: %v, want not_found", err)
	}
	s.wantStatus(t, "sbx-one", nil)
}

func testWarm(t *testing.T, s *suite, e engine.Checkpointer) {
	c := client(t, s.create(t, "sbx-golden"))
	startCounting(t, c)
	_, err := e.Checkpoint(t.Context(), "sbx-golden", "ckp-golden", engine.CheckpointOptions{Durable: true})
	must(t, err)
	spec := s.Spec(t)
	e.Warm([]engine.WarmSpec{{Checkpoint: "ckp-golden", Root: spec.Root, Resources: spec.Resources, Max: 2}})
	ids := map[string]bool{}
	for n := range 6 {
		time.Sleep(300 * time.Millisecond)
		spec := s.Spec(t)
		spec.ID, spec.Checkpoint, spec.Fresh = fmt.Sprintf("sbx-warm-%d", n), "ckp-golden", true
		spec.Hostname, spec.Env = spec.ID, map[string]string{"N": fmt.Sprint(n)}
		began := time.Now()
		i, err := s.e.Create(t.Context(), spec)
		must(t, err)
		took := time.Since(began)
		out := output(t, client(t, i), "hostname; echo $N; cat /etc/machine-id 2>/dev/null; true")
		t.Logf("warm create in %s: %q", took, out)
		if !strings.HasPrefix(out, fmt.Sprintf("%s\n%d", spec.ID, n)) {
			t.Errorf("it says %q", out)
		}
		if ids[out] {
			t.Errorf("two have %q", out)
		}
		ids[out] = true
		ask(t, client(t, i), "warm")
		must(t, s.e.Destroy(t.Context(), spec.ID))
	}
}
