package service

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

// TestBuildLogText runs a step that writes characters in pieces, on both streams at the
// same time, and bytes that are not text.
func TestBuildLogText(t *testing.T) {
	w := newHarness(t)
	pipe := filepath.Join(t.TempDir(), "on")
	must(t, syscall.Mkfifo(pipe, 0o600))
	on, err := os.OpenFile(pipe, os.O_RDWR, 0)
	must(t, err)
	defer on.Close()
	script := `printf 'out:\342\202'; printf 'err:\360\237' >&2
read line < ` + pipe + `
printf '\254.'; printf '\230\200.bad:\377.cut:\342\202' >&2; echo x > x`
	begun := w.beginBuild(sandbox.BuildTemplateRequest{Name: "mine", Spec: steps(script)})
	var log string
	b, err := w.FollowBuild(asRed(t), begun.ID, func(e sandbox.BuildEvent) error {
		had := strings.Contains(log, "out:") && strings.Contains(log, "err:")
		log += e.Log
		if !had && strings.Contains(log, "out:") && strings.Contains(log, "err:") {
			_, err := on.WriteString("\n") // the rest comes in other pieces
			return err
		}
		return nil
	})
	must(t, err)
	if b.State != sandbox.BuildReady {
		t.Fatalf("%+v", b)
	}
	for _, part := range []string{"out:", "err:", "€.", "😀.", "bad:\uFFFD.cut:", "\uFFFD"} {
		if !strings.Contains(log, part) {
			t.Errorf("the log %q lacks %q", log, part)
		}
	}
	if n := strings.Count(log, "\uFFFD"); n != 2 {
		t.Errorf("the log %q has %d characters that are none, want 2", log, n)
	}

	// The last output of a failure begins with a whole character.
	long := strings.Repeat("€", (2<<10)/3+1)
	b, _, _ = w.follow(w.beginBuild(sandbox.BuildTemplateRequest{Name: "broken", Spec: steps("printf '" + long + "'; exit 1")}).ID)
	if b.State != sandbox.BuildFailed || strings.Contains(b.Reason, "\uFFFD") || !strings.HasSuffix(b.Reason, "€€€") {
		t.Errorf("failed for %q", b.Reason)
	}
}
