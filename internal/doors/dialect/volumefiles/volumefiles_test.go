package volumefiles

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

// No path leads out of a volume.
func TestAt(t *testing.T) {
	for p, want := range map[string]string{
		"/": root, "": root, ".": root, "a": root + "/a", "/a/../..": root, "../../etc/passwd": root + "/etc/passwd", "/a/./b//c": root + "/a/b/c", "/..": root,
	} {
		if got := at(p); got != want {
			t.Errorf("%q: %s, want %s", p, got, want)
		}
	}
	if err := (&Files{}).Delete(t.Context(), "/a/..", true); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("the top is removed: %v", err)
	}
	if got := inVolume(&sandbox.FileInfo{Path: root, Name: "volume"}); got.Path != "/" || got.Name != "/" {
		t.Errorf("the top is %+v", got)
	}
}

// boxes is a service with a volume vol-1.
type boxes struct {
	sandbox.Service
	mu   sync.Mutex
	made []sandbox.Sandbox
}

func (b *boxes) GetVolume(_ context.Context, volume string) (*sandbox.Volume, error) {
	if volume != "data" && volume != "vol-1" {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "no volume")
	}
	return &sandbox.Volume{ID: "vol-1", Name: "data"}, nil
}

func (b *boxes) Create(_ context.Context, req sandbox.CreateRequest) (*sandbox.Sandbox, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.made = append(b.made, sandbox.Sandbox{ID: "sbx-" + string(rune('a'+len(b.made))), Metadata: req.Metadata, Mounts: req.Mounts, Network: req.Network})
	return &b.made[len(b.made)-1], nil
}

func (b *boxes) List(ctx context.Context, req sandbox.ListRequest) (*sandbox.List[sandbox.Sandbox], error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c, _ := sandbox.CallerOf(ctx); c.Namespace != "" || !slices.Contains(req.States, sandbox.StateRunning) {
		return &sandbox.List[sandbox.Sandbox]{}, nil // they are in another
	}
	// A sandbox that only claims to mount the volume.
	decoy := sandbox.Sandbox{ID: "sbx-decoy", Metadata: map[string]string{Tag: "vol-1"}, Mounts: []sandbox.Mount{{Target: root, Volume: "vol-2"}}}
	return &sandbox.List[sandbox.Sandbox]{Items: append([]sandbox.Sandbox{decoy}, b.made...)}, nil
}

func (b *boxes) StatFile(_ context.Context, id, _ string) (*sandbox.FileInfo, error) {
	if id == "sbx-decoy" {
		panic("the decoy is asked")
	}
	return &sandbox.FileInfo{Path: root, Type: sandbox.TypeDirectory}, nil
}

func (b *boxes) Kill(_ context.Context, id string) (*sandbox.Sandbox, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if id != "sbx-a" {
		panic("a stranger is killed")
	}
	b.made = nil
	return &sandbox.Sandbox{}, nil
}

// Concurrent callers share one sandbox, which has no network and is gone before its
// volume.
func TestOpen(t *testing.T) {
	b := &boxes{}
	o := New(b)
	var all sync.WaitGroup
	for _, ref := range []string{"data", "vol-1", "data", "vol-1"} {
		all.Go(func() {
			if f, err := o.Open(t.Context(), ref); err != nil || f.box != "sbx-a" {
				t.Errorf("%+v, %v", f, err)
			}
		})
	}
	all.Wait()
	if len(b.made) != 1 || b.made[0].Network.Preset != sandbox.NetworkNone || len(o.open) != 0 {
		t.Errorf("%d sandboxes, %d turns: %+v", len(b.made), len(o.open), b.made)
	}
	if _, err := o.Open(t.Context(), "other"); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("no volume: %v", err)
	}
	if err := o.Close(sandbox.WithCaller(t.Context(), sandbox.Caller{Namespace: "other"}), "vol-1"); err != nil || len(b.made) != 0 {
		t.Errorf("closed: %v, %+v", err, b.made)
	}
}

// tools is a service whose programs fail, with these words.
type tools struct {
	sandbox.Service
	says string
}

func (s tools) Exec(_ context.Context, _ string, _ sandbox.ExecRequest, sink sandbox.JobSink) (*sandbox.Job, error) {
	return &sandbox.Job{ExitCode: 137}, sink(sandbox.JobEvent{Stream: sandbox.Stderr, Data: []byte(s.says)})
}

func TestToolFails(t *testing.T) {
	for says, want := range map[string]string{"cp: cannot stat '/volume/a'\n": "cp: cannot stat '/a'", "": "cp has failed with exit code 137"} {
		f := &Files{service: tools{says: says}}
		if err := f.Copy(t.Context(), "a", "b"); sandbox.CodeOf(err) != sandbox.CodeInvalid || sandbox.MessageOf(err) != want {
			t.Errorf("%q: %v", says, err)
		}
	}
}
