package service

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

// TestTextStream cuts a stream at every two places.
func TestTextStream(t *testing.T) {
	const text = "aé€😀\xffb\xe2\x82c\xf0\x9f😀\xf0\x9f"
	want := strings.ToValidUTF8(text, "\uFFFD")
	for i := range len(text) + 1 {
		for j := i; j <= len(text); j++ {
			var s textStream
			got := s.write(0, []byte(text[:i])) + s.write(int64(i), []byte(text[i:j])) + s.write(int64(j), []byte(text[j:]))
			if len(s.partial) > 3 {
				t.Errorf("cut at %d and %d it keeps %q", i, j, s.partial)
			}
			if got += s.end(); got != want || s.end() != "" {
				t.Errorf("cut at %d and %d it is %q, want %q", i, j, got, want)
			}
		}
	}
	// What is missing in the middle makes no character of its two ends.
	var s textStream
	if got := s.write(0, []byte("a\xe2\x82")) + s.write(7, []byte("\xacb")); got != "a\uFFFD\uFFFDb" {
		t.Errorf("with a gap it is %q", got)
	}
	for _, c := range [][3]string{
		{"", "", ""}, {"é€", "é€", "é€"}, {"é\xe2\x82", "é", "é\uFFFD"}, {"\x82\xacé", "\uFFFDé", "é"}, {"\x82", "\uFFFD", ""},
	} {
		if first, last := firstText([]byte(c[0])), lastText([]byte(c[0])); first != c[1] || last != c[2] {
			t.Errorf("%q is %q as a beginning and %q as an end, want %q and %q", c[0], first, last, c[1], c[2])
		}
	}
}

// TestBuildLogText has a step write characters in pieces, on both streams at the
// same time, and what is no text.
func TestBuildLogText(t *testing.T) {
	w := newWorld(t)
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
	b, err := w.FollowBuild(red(t), begun.ID, func(e sandbox.BuildEvent) error {
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
	long := strings.Repeat("€", stepWords/3+1)
	b, _, _ = w.follow(w.beginBuild(sandbox.BuildTemplateRequest{Name: "broken", Spec: steps("printf '" + long + "'; exit 1")}).ID)
	if b.State != sandbox.BuildFailed || strings.Contains(b.Reason, "\uFFFD") || !strings.HasSuffix(b.Reason, "€€€") {
		t.Errorf("failed for %q", b.Reason)
	}
}
