package e2e

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// counted is what "seq 1 n" writes.
func counted(n int) []byte {
	all := make([]byte, 0, 9*n)
	for i := 1; i <= n; i++ {
		all = append(strconv.AppendInt(all, int64(i), 10), '\n')
	}
	return all
}

// keptOutput reads the kept part of a job's standard output from offset on, in ranges.
// Only the first range may have a gap before it. It returns the position of the part.
func keptOutput(t *testing.T, d *covetest.Daemon, id, job string, offset int64) (begin int64, kept []byte) {
	t.Helper()
	for at := offset; ; {
		out, err := d.Client.ReadOutput(t.Context(), id, job, sandbox.OutputRequest{Stream: sandbox.Stdout, Offset: at})
		if err != nil {
			t.Fatal(err)
		}
		if at == offset {
			begin = out.Offset
		} else if out.Offset != at {
			t.Fatalf("a gap from %d to %d", at, out.Offset)
		}
		if kept = append(kept, out.Data...); len(out.Data) == 0 {
			return begin, kept
		}
		at = out.Offset + int64(len(out.Data))
	}
}

// awaitBytes waits until a job has written this many bytes.
func awaitBytes(t *testing.T, d *covetest.Daemon, id, job string, size int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for {
		j, err := d.Client.GetJob(ctx, id, job)
		if err != nil {
			t.Fatal(err)
		}
		if j.StdoutBytes >= size {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// 100 MB that a background job has written can be read completely
// afterwards: in ranges, by attaching late, after the daemon has died, after a pause,
// in a fork, and in a sandbox from a snapshot.
// In "make test-all", TestMoreLongOutputOnSmallDisk, and TestKeptOutput of internal/guest/agent, stand for it.
func TestSoakLongOutput(t *testing.T) {
	needs.GVisor(t)
	d := covetest.Start(t, covetest.Options{})
	const lines, usedMiB = 12_850_000, 90
	want := counted(lines)
	size := int64(len(want))
	s := d.Create(t, covetest.Small(func(r *sandbox.CreateRequest) { r.Resources.DiskMiB = 512 }))
	job, err := d.Client.Exec(t.Context(), s.ID, sandbox.ExecRequest{
		Shell: fmt.Sprintf("seq 1 %d; exec cat", lines), Background: true, OpenStdin: true,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	awaitBytes(t, d, s.ID, job.ID, size)
	// check reads what there is from offset on.
	check := func(t *testing.T, id string, offset int64, more string) {
		t.Helper()
		begin, got := keptOutput(t, d, id, job.ID, offset)
		if all := append(want[offset:size:size], more...); begin != offset || !bytes.Equal(got, all) {
			t.Errorf("read %d bytes from %d on, not the %d that were written", len(got), begin, len(all))
		}
	}
	check(t, s.ID, 0, "")
	if used, err := strconv.Atoi(strings.TrimSpace(d.Sh(t, s.ID, "df -m --output=used / | tail -1"))); err != nil || used < usedMiB {
		t.Errorf("%d MiB of the disk are in use (%v): the output is elsewhere", used, err)
	}
	if names := d.Sh(t, s.ID, "ls -A / | grep '[.]cove-' || true"); names != "" {
		t.Errorf("files of the agent are seen: %s", names)
	}
	d.Kill()
	if err := d.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Client.Pause(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	snap, err := d.Client.CreateSnapshot(t.Context(), s.ID, sandbox.CreateSnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	check(t, s.ID, 0, "") // resumes it
	forks, err := d.Client.Fork(t.Context(), s.ID, sandbox.ForkRequest{Count: 1})
	if err != nil {
		t.Fatal(err)
	}
	child := forks.Items[0].ID
	write := func(id, text string) { // each goes its own way
		if err := d.Client.WriteInput(t.Context(), id, job.ID, []byte(text), true); err != nil {
			t.Fatal(err)
		}
		awaitBytes(t, d, id, job.ID, size+int64(len(text)))
	}
	write(s.ID, "parent\n")
	write(child, "the child\n")
	check(t, s.ID, size/2, "parent\n")
	var got []byte // by one who attaches late
	last, err := d.Client.Attach(t.Context(), child, job.ID, sandbox.AttachRequest{}, func(ev sandbox.JobEvent) error {
		got = append(got, ev.Data...)
		return nil
	})
	if err != nil || last.ExitCode != 0 || !bytes.Equal(got, append(want, "the child\n"...)) {
		t.Errorf("attached to the child: %+v, %v, %d bytes", last, err, len(got))
	}
	if _, err := d.Client.RestoreSnapshot(t.Context(), s.ID, sandbox.RestoreRequest{Snapshot: snap.ID}); err != nil {
		t.Fatal(err)
	}
	check(t, s.ID, size/2, "")
}

// Output for which there is no room is dropped, oldest first, and the gap is reported. That
// neither ends the job nor affects its newest output, even if the disk is full. In "make test",
// TestSpoolRotates and TestKeptOutput of package agent stand for it.
func TestMoreLongOutputOnSmallDisk(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		const lines = 4_000_000
		want := counted(lines)
		size := int64(len(want))
		s := d.Create(t, covetest.Small())
		run := func(t *testing.T) (begin int64) {
			t.Helper()
			job, err := d.Client.Exec(t.Context(), s.ID, sandbox.ExecRequest{Shell: fmt.Sprintf("seq 1 %d", lines), Background: true}, nil)
			if err != nil {
				t.Fatal(err)
			}
			awaitBytes(t, d, s.ID, job.ID, size)
			begin, got := keptOutput(t, d, s.ID, job.ID, sandbox.DefaultKeepBytes)
			if begin <= sandbox.DefaultKeepBytes || len(got) < sandbox.DefaultKeepBytes/2 || !bytes.Equal(got, want[begin:]) {
				t.Errorf("read %d bytes from %d on, not the last of %d", len(got), begin, size)
			}
			var missing, seen int64
			last, err := d.Client.Attach(t.Context(), s.ID, job.ID, sandbox.AttachRequest{}, func(ev sandbox.JobEvent) error {
				missing += max(0, ev.Offset-seen)
				seen = max(seen, ev.Offset+int64(len(ev.Data)))
				return nil
			})
			if err != nil || last.ExitCode != 0 || seen != size || missing == 0 {
				t.Errorf("%+v, %v; read to %d, %d bytes are missing", last, err, seen, missing)
			}
			return begin
		}
		if kept := size - run(t); kept < 12<<20 || kept > 16<<20+sandbox.DefaultKeepBytes {
			t.Errorf("%d bytes are kept on a disk of 64 MiB, want a quarter of it", kept)
		}
		res, err := d.Exec(t.Context(), s.ID, sandbox.ExecRequest{Shell: "head -c 100M /dev/zero > /fill; head -c 100M /dev/zero >> /fill; df -k --output=avail / | tail -1", User: "root"})
		if err != nil || strings.TrimSpace(res.Stdout) != "0" {
			t.Fatalf("the disk is not full: %s %s (%v)", res.Stdout, res.Stderr, err)
		}
		run(t)
	})
}
