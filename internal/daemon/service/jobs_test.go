package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/sandbox"
)

func TestExecCancelKills(t *testing.T) {
	sinkErr := errors.New("the caller's own error")
	for _, c := range []struct {
		name string
		req  sandbox.ExecRequest
		// stop is called at the first output.
		stop func(cancel func()) error
		want func(error) bool
	}{
		{"cancelled", sandbox.ExecRequest{Shell: "trap '' TERM HUP INT; echo begun; sleep 300"}, func(cancel func()) error { cancel(); return nil },
			func(err error) bool { return sandbox.CodeOf(err) == sandbox.CodeCancelled }},
		{"sink fails", sandbox.ExecRequest{Shell: "echo begun; sleep 300"}, func(func()) error { return sinkErr },
			func(err error) bool { return err == sinkErr }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newHarness(t)
			sbx := w.create(sandbox.CreateRequest{})
			ctx, cancel := context.WithCancel(asRed(t))
			defer cancel()
			job, err := w.Exec(ctx, sbx.ID, c.req, func(e sandbox.JobEvent) error {
				if e.Data == nil {
					return nil
				}
				return c.stop(cancel)
			})
			if !c.want(err) || job == nil {
				t.Fatalf("Exec: %+v, %v", job, err)
			}
			if job.State != sandbox.JobExited || job.Signal != "KILL" || job.ExitCode != 137 || job.EndCause != sandbox.EndSignal {
				t.Errorf("when Exec returned the job was %+v", job)
			}
			out, err := w.ReadOutput(asRed(t), sbx.ID, job.ID, sandbox.OutputRequest{Stream: sandbox.Stdout})
			must(t, err)
			if string(out.Data) != "begun\n" || out.Running {
				t.Errorf("kept output %q, running %v", out.Data, out.Running)
			}
		})
	}
}

// TestExecCancelledEarly cancels at times around the start of a command: no command may
// continue.
func TestExecCancelledEarly(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{})
	for i := range 12 {
		ctx, cancel := context.WithTimeout(asRed(t), time.Duration(i)*400*time.Microsecond)
		if _, err := w.Exec(ctx, sbx.ID, sandbox.ExecRequest{Shell: "sleep 300"}, nil); err == nil {
			t.Error("the command ended well")
		}
		cancel()
	}
	wait(t, func() bool {
		jobs, err := w.ListJobs(asRed(t), sbx.ID, sandbox.Page{})
		must(t, err)
		return !slices.ContainsFunc(jobs.Items, func(j sandbox.Job) bool { return j.State == sandbox.JobRunning })
	}, func() string {
		jobs, _ := w.ListJobs(asRed(t), sbx.ID, sandbox.Page{})
		return fmt.Sprintf("a command runs on: %+v", jobs.Items)
	})
}

func TestBackgroundSinkFails(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{})
	boom := errors.New("boom")
	job, err := w.Exec(asRed(t), sbx.ID, sandbox.ExecRequest{Shell: "sleep 300", Background: true}, func(sandbox.JobEvent) error { return boom })
	if err != boom || job == nil || job.State != sandbox.JobExited {
		t.Errorf("Exec: %+v, %v", job, err)
	}
}

// A followed background command returns its output and its end with one call, and
// continues when the caller goes away.
func TestFollowedBackground(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{})
	out := ""
	job, err := w.Exec(sandbox.WithFollowed(asRed(t)), sbx.ID, sandbox.ExecRequest{Shell: "echo one; exit 3", Background: true}, func(e sandbox.JobEvent) error {
		out += string(e.Data)
		return nil
	})
	if err != nil || out != "one\n" || job.State != sandbox.JobExited || job.ExitCode != 3 {
		t.Fatalf("%q, %+v, %v", out, job, err)
	}
	boom := errors.New("gone")
	for name, leave := range map[string]func(cancel func()) error{"the sink fails": func(func()) error { return boom }, "the caller goes": func(cancel func()) error { cancel(); return nil }} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(asRed(t))
			defer cancel()
			job, err := w.Exec(sandbox.WithFollowed(ctx), sbx.ID, sandbox.ExecRequest{Shell: "echo begun; until [ -e go ]; do sleep 0.01; done; rm go; exit 4", Background: true}, func(e sandbox.JobEvent) error {
				if e.Data == nil {
					return nil
				}
				return leave(cancel)
			})
			if err == nil || job == nil || job.State != sandbox.JobRunning {
				t.Fatalf("%+v, %v", job, err)
			}
			_, err = w.Exec(asRed(t), sbx.ID, sandbox.ExecRequest{Shell: "touch go"}, nil)
			must(t, err)
			ended, err := w.Attach(asRed(t), sbx.ID, job.ID, sandbox.AttachRequest{}, func(sandbox.JobEvent) error { return nil })
			if err != nil || ended.ExitCode != 4 {
				t.Errorf("then it is %+v, %v", ended, err)
			}
		})
	}
}

// Without a sink, Exec returns when the command has started, and the follower attaches.
func TestFollowedLater(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{})
	job, err := w.Exec(sandbox.WithFollowed(asRed(t)), sbx.ID, sandbox.ExecRequest{Shell: "until [ -e go ]; do sleep 0.01; done; exit 4", Background: true}, nil)
	if err != nil || job.State != sandbox.JobRunning {
		t.Fatalf("%+v, %v", job, err)
	}
	_, err = w.Exec(asRed(t), sbx.ID, sandbox.ExecRequest{Shell: "touch go"}, nil)
	must(t, err)
	if job, err = w.Attach(asRed(t), sbx.ID, job.ID, sandbox.AttachRequest{}, nil); err != nil || job.ExitCode != 4 {
		t.Errorf("%+v, %v", job, err)
	}
}

// TestExecSurvivesClose closes the daemon during a command: the command continues, as it
// does when the daemon is killed.
func TestExecSurvivesClose(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{})
	ids := make(chan string, 1)
	ended := make(chan error, 1)
	go func() {
		_, err := w.Exec(asRed(t), sbx.ID, sandbox.ExecRequest{Shell: "sleep 300"}, func(e sandbox.JobEvent) error {
			ids <- e.Job.ID
			return nil
		})
		ended <- err
	}()
	id := <-ids
	w.restart()
	err := <-ended
	wantCode(t, err, sandbox.CodeUnavailable)
	if !strings.Contains(err.Error(), id) {
		t.Errorf("the error %q does not name the job", err)
	}
	job, err := w.GetJob(asRed(t), sbx.ID, id)
	must(t, err)
	if job.State != sandbox.JobRunning {
		t.Errorf("after the restart: %+v", job)
	}
}

func TestJobEvents(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{})
	var events []sandbox.JobEvent
	job, err := w.Exec(asRed(t), sbx.ID, sandbox.ExecRequest{Shell: "echo out; " + untilGo + "; echo err >&2; exit 3"}, func(e sandbox.JobEvent) error {
		e.Data = slices.Clone(e.Data)
		events = append(events, e)
		if len(e.Data) > 0 {
			return w.goOn(sbx.ID)
		}
		return nil
	})
	must(t, err)
	if len(events) != 4 || events[0].Job == nil || events[0].Job.State != sandbox.JobRunning || events[3].Job == nil {
		t.Fatalf("events are %+v", events)
	}
	want := []sandbox.JobEvent{{Stream: sandbox.Stdout, Data: []byte("out\n")}, {Stream: sandbox.Stderr, Data: []byte("err\n")}}
	if diff := cmp.Diff(want, events[1:3]); diff != "" {
		t.Errorf("differs (-want +got):\n%s", diff)
	}
	if job.ExitCode != 3 || job.StdoutBytes != 4 || job.StderrBytes != 4 || job.EndCause != "" || job.Signal != "" {
		t.Errorf("job is %+v", job)
	}
	got, err := w.GetJob(asRed(t), sbx.ID, job.ID)
	must(t, err)
	if diff := cmp.Diff(job, got); diff != "" {
		t.Errorf("GetJob differs (-exec +get):\n%s", diff)
	}
	var again strings.Builder
	_, err = w.Attach(asRed(t), sbx.ID, job.ID, sandbox.AttachRequest{StdoutOffset: 1, StderrOffset: 2}, func(e sandbox.JobEvent) error { again.Write(e.Data); return nil })
	must(t, err)
	if again.String() != "ut\nr\n" {
		t.Errorf("Attach from the middle gives %q", again.String())
	}
}

func TestSignals(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{})
	for _, sig := range []string{"TERM", "SIGTERM", "15", "term"} {
		job, err := w.Exec(asRed(t), sbx.ID, sandbox.ExecRequest{Command: []string{"sleep", "300"}, Background: true}, nil)
		must(t, err)
		_, err = w.SignalJob(asRed(t), sbx.ID, job.ID, sig, 0)
		must(t, err)
		job, err = w.Attach(asRed(t), sbx.ID, job.ID, sandbox.AttachRequest{}, nil)
		must(t, err)
		if job.Signal != "TERM" || job.ExitCode != 143 {
			t.Errorf("after %s: %+v", sig, job)
		}
		_, err = w.SignalJob(asRed(t), sbx.ID, job.ID, sig, 0)
		wantCode(t, err, sandbox.CodeConflict)
	}
	for _, sig := range []string{"", "NOPE", "0", "-1", "65", "9999999999999999999", "\x00"} {
		_, err := w.SignalJob(asRed(t), sbx.ID, "job-x", sig, 0)
		wantCode(t, err, sandbox.CodeInvalid)
	}
}

func TestTerminal(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{})
	job, err := w.Exec(asRed(t), sbx.ID, sandbox.ExecRequest{Shell: "read line; stty size", OpenStdin: true, Terminal: &sandbox.TerminalSize{Cols: 80, Rows: 24}, Background: true}, nil)
	must(t, err)
	must(t, w.ResizeTerminal(asRed(t), sbx.ID, job.ID, sandbox.TerminalSize{Cols: 132, Rows: 43}))
	must(t, w.WriteInput(asRed(t), sbx.ID, job.ID, []byte("go\n"), false))
	var out strings.Builder
	_, err = w.Attach(asRed(t), sbx.ID, job.ID, sandbox.AttachRequest{}, func(e sandbox.JobEvent) error { out.Write(e.Data); return nil })
	must(t, err)
	if !strings.Contains(out.String(), "43 132") {
		t.Errorf("printed %q", out.String())
	}
}

func TestFiles(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{})
	ctx := asRed(t)
	content := strings.Repeat("0123456789abcdef", 100_000) // of many chunks
	info, err := w.WriteFile(ctx, sbx.ID, sandbox.WriteFileRequest{Path: "a/b/file", Mode: "0600", MakeParents: true}, iotest.HalfReader(strings.NewReader(content)))
	must(t, err)
	if info.Size != int64(len(content)) || info.Mode != "0600" || info.Type != sandbox.TypeFile || info.Name != "file" {
		t.Errorf("wrote %+v", info)
	}
	read := func(req sandbox.ReadFileRequest) string {
		t.Helper()
		r, err := w.ReadFile(ctx, sbx.ID, req)
		must(t, err)
		defer r.Close()
		b, err := io.ReadAll(r)
		must(t, err)
		return string(b)
	}
	if got := read(sandbox.ReadFileRequest{Path: "a/b/file"}); got != content {
		t.Errorf("read %d bytes of %d", len(got), len(content))
	}
	if got := read(sandbox.ReadFileRequest{Path: "a/b/file", Offset: 5, Limit: 7}); got != "56789ab" {
		t.Errorf("read a range as %q", got)
	}
	_, err = w.WriteFile(ctx, sbx.ID, sandbox.WriteFileRequest{Path: "a/b/file", Exclusive: true}, strings.NewReader("x"))
	wantCode(t, err, sandbox.CodeConflict)
	_, err = w.WriteFile(ctx, sbx.ID, sandbox.WriteFileRequest{Path: "empty"}, nil)
	must(t, err)
	if got := read(sandbox.ReadFileRequest{Path: "empty"}); got != "" {
		t.Errorf("an empty file has %q", got)
	}
	_, err = w.WriteFile(ctx, sbx.ID, sandbox.WriteFileRequest{Path: "small"}, strings.NewReader("one two two"))
	must(t, err)
	_, err = w.EditFile(ctx, sbx.ID, sandbox.EditFileRequest{Path: "small", OldText: "two", NewText: "2"})
	if sandbox.CodeOf(err) == "" {
		t.Error("an ambiguous edit was made")
	}
	res, err := w.EditFile(ctx, sbx.ID, sandbox.EditFileRequest{Path: "small", OldText: "two", NewText: "2", ReplaceAll: true})
	must(t, err)
	if got := read(sandbox.ReadFileRequest{Path: "small"}); got != "one 2 2" || res.Replacements != 2 {
		t.Errorf("after the edit %q, %+v", got, res)
	}
	_, err = w.MoveFile(ctx, sbx.ID, sandbox.MoveFileRequest{From: "small", To: "a/moved"})
	must(t, err)
	_, err = w.StatFile(ctx, sbx.ID, "small")
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = w.MakeDir(ctx, sbx.ID, sandbox.MakeDirRequest{Path: "x/y/z", Mode: "0750"})
	must(t, err)
	dir, err := w.StatFile(ctx, sbx.ID, "x/y/z")
	must(t, err)
	if dir.Type != sandbox.TypeDirectory || dir.Mode != "0750" {
		t.Errorf("made %+v", dir)
	}
	w.shell(sbx.ID, "ln -s /etc/passwd link")
	link, err := w.StatFile(ctx, sbx.ID, "link")
	must(t, err)
	if link.Type != sandbox.TypeSymlink || link.SymlinkTarget != "/etc/passwd" {
		t.Errorf("link is %+v", link)
	}
	made, err := w.MakeSymlink(ctx, sbx.ID, sandbox.MakeSymlinkRequest{Path: "new/dir/link", Target: "../file", MakeParents: true})
	must(t, err)
	if made.Type != sandbox.TypeSymlink || made.SymlinkTarget != "../file" {
		t.Errorf("made %+v", made)
	}
	_, err = w.MakeSymlink(ctx, sbx.ID, sandbox.MakeSymlinkRequest{Path: "new/dir/link", Target: "other"})
	wantCode(t, err, sandbox.CodeConflict)
	made, err = w.MakeSymlink(ctx, sbx.ID, sandbox.MakeSymlinkRequest{Path: "new/dir/link", Target: "other", Overwrite: true})
	must(t, err)
	if made.SymlinkTarget != "other" {
		t.Errorf("the link that replaced one is %+v", made)
	}
	_, err = w.MakeSymlink(ctx, sbx.ID, sandbox.MakeSymlinkRequest{Path: "new/dir", Target: "other", Overwrite: true})
	wantCode(t, err, sandbox.CodeInvalid)
	_, err = w.MakeSymlink(ctx, sbx.ID, sandbox.MakeSymlinkRequest{Path: "new/empty", Target: ""})
	wantCode(t, err, sandbox.CodeInvalid)
	must(t, w.DeleteFile(ctx, sbx.ID, "new", true))
	wantCode(t, w.DeleteFile(ctx, sbx.ID, "x", false), sandbox.CodeConflict)
	must(t, w.DeleteFile(ctx, sbx.ID, "x", true))

	var names []string
	req := sandbox.ListFilesRequest{Path: ".", Depth: 5, Page: sandbox.Page{Limit: 2}}
	for pages := 1; ; pages++ {
		list, err := w.ListFiles(ctx, sbx.ID, req)
		must(t, err)
		for _, f := range list.Items {
			names = append(names, f.Name)
		}
		if req.Cursor = list.NextCursor; req.Cursor == "" {
			break
		}
	}
	if want := []string{"a", "b", "file", "moved", "empty", "link"}; !slices.Equal(names, want) {
		t.Errorf("listed %v, want %v", names, want)
	}
	zip, err := w.ArchiveDir(ctx, sbx.ID, "a", 0)
	must(t, err)
	b, err := io.ReadAll(zip)
	must(t, err)
	must(t, zip.Close())
	if !strings.HasPrefix(string(b), "PK\x03\x04") {
		t.Errorf("the archive begins with %q", b[:min(8, len(b))])
	}
	zip, err = w.ArchiveDir(ctx, sbx.ID, "a", 100)
	if err == nil {
		_, err = io.ReadAll(zip)
		must(t, zip.Close())
	}
	wantCode(t, err, sandbox.CodeTooLarge)
	_, err = w.ArchiveDir(ctx, sbx.ID, "nowhere", 0)
	wantCode(t, err, sandbox.CodeNotFound)
}

func TestWriteFileContentFails(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{})
	tooLarge := sandbox.Errorf(sandbox.CodeTooLarge, "the door's own limit")
	for _, c := range []struct {
		err  error
		want sandbox.Code
	}{
		{errors.New("connection reset"), sandbox.CodeCancelled},
		{io.ErrUnexpectedEOF, sandbox.CodeCancelled},
		{tooLarge, sandbox.CodeTooLarge},
	} {
		for _, n := range []int{0, 10, 300_000} {
			_, err := w.WriteFile(asRed(t), sbx.ID, sandbox.WriteFileRequest{Path: "file"}, io.MultiReader(strings.NewReader(strings.Repeat("x", n)), iotest.ErrReader(c.err)))
			wantCode(t, err, c.want)
			_, err = w.StatFile(asRed(t), sbx.ID, "file")
			wantCode(t, err, sandbox.CodeNotFound)
		}
	}
	// The agent may notice the last broken call later than its caller.
	var left string
	wait(t, func() bool { left = w.shell(sbx.ID, "ls -A"); return left == "" }, func() string { return "left behind: " + left })
}

func TestReaderIsACall(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{})
	_, err := w.WriteFile(asRed(t), sbx.ID, sandbox.WriteFileRequest{Path: "file"}, strings.NewReader("x"))
	must(t, err)
	r, err := w.ReadFile(asRed(t), sbx.ID, sandbox.ReadFileRequest{Path: "file"})
	must(t, err)
	h, err := w.Service.open(t.Context(), call.Realm{Team: "red"}, sbx.ID)
	must(t, err)
	if _, busy := h.lastActive(); !busy {
		t.Error("while content is read the sandbox is not busy")
	}
	must(t, r.Close())
	must(t, r.Close())
	if _, busy := h.lastActive(); busy {
		t.Error("after the content was closed the sandbox is busy")
	}
}

func TestWatch(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{})
	ctx, cancel := context.WithCancel(asRed(t))
	defer cancel()
	ready := make(chan struct{})
	seen := make(chan sandbox.WatchEvent, 100)
	ended := make(chan error, 1)
	go func() {
		ended <- w.WatchFiles(ctx, sbx.ID, sandbox.WatchRequest{Path: "."}, func(e sandbox.WatchEvent) error {
			if e.Kind == sandbox.WatchReady {
				close(ready)
			}
			seen <- e
			return nil
		})
	}()
	<-ready
	w.shell(sbx.ID, "echo > new")
	for e := range seen {
		if e.Kind == sandbox.WatchCreated && strings.HasSuffix(e.Path, "/new") {
			break
		}
	}
	cancel()
	must(t, <-ended)
	boom := errors.New("boom")
	if err := w.WatchFiles(asRed(t), sbx.ID, sandbox.WatchRequest{Path: "."}, func(sandbox.WatchEvent) error { return boom }); err != boom {
		t.Errorf("with a sink that fails: %v", err)
	}
	again := make(chan struct{}, 1)
	go func() {
		ended <- w.WatchFiles(asRed(t), sbx.ID, sandbox.WatchRequest{Path: "."}, func(e sandbox.WatchEvent) error {
			// The end of the sandbox changes files too.
			if e.Kind == sandbox.WatchReady {
				again <- struct{}{}
			}
			return nil
		})
	}()
	<-again
	_, err := w.Kill(asRed(t), sbx.ID)
	must(t, err)
	wantCode(t, <-ended, sandbox.CodeNotRunning)
}

func TestStats(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 256, DiskMiB: 512}})
	st, err := w.Stats(asRed(t), sbx.ID)
	must(t, err)
	if st.SandboxID != sbx.ID || st.MemoryMaxBytes != 256<<20 || st.DiskMaxBytes != 512<<20 || st.CPUSeconds <= 0 || st.Processes <= 0 {
		t.Errorf("stats are %+v", st)
	}
}

// BenchmarkExec measures what the service and the agent add to a process
// start: there is no isolation here.
func BenchmarkExec(b *testing.B) {
	w := newHarness(b)
	ctx := as(b.Context(), "red")
	sbx, err := w.Create(ctx, sandbox.CreateRequest{})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := w.Exec(ctx, sbx.ID, sandbox.ExecRequest{Command: []string{"/bin/true"}}, nil); err != nil {
			b.Fatal(err)
		}
	}
}
