package image

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// TestUploadTicket attacks with the link of an upload, taken from a CI or proxy log: it
// sends another archive in place of the owner's. A ticket works for only one archive, the
// first to complete, even after a restart of the server.
func TestUploadTicket(t *testing.T) {
	p := newProvider(t, "")
	up := Upload{Name: "upload-" + strings.Repeat("a", 26), Most: 100, Ticket: "u2.x"}
	keep := func(p *Provider, up Upload, content io.Reader) error {
		_, err := p.KeepArchive(t.Context(), up, content)
		return err
	}
	holds := func(want string) {
		t.Helper()
		if got, err := os.ReadFile(p.uploadFile(up.Name)); err != nil || string(got) != want {
			t.Errorf("the archive is %q (%v), want %q", got, err, want)
		}
	}
	// An upload that breaks off or is too large may be repeated.
	if err := keep(p, up, failing{io.ErrUnexpectedEOF}); err == nil {
		t.Fatal("half an archive was kept")
	}
	if err := keep(p, up, strings.NewReader(strings.Repeat("x", 101))); sandbox.CodeOf(err) != sandbox.CodeTooLarge {
		t.Errorf("too much: %v", err)
	}
	// Of several concurrent uploads one wins, and that one is kept. All of them end at the
	// same moment.
	const senders = uploadsAtOnce
	type sent struct {
		who byte
		err error
	}
	results, ready, end := make(chan sent, senders), make(chan struct{}, senders), make(chan struct{})
	for i := range byte(senders) {
		go func() {
			content := io.MultiReader(bytes.NewReader([]byte{'0' + i}), hook(func() { ready <- struct{}{}; <-end }))
			results <- sent{i, keep(p, up, content)}
		}()
	}
	for range senders {
		<-ready
	}
	close(end)
	won := []byte(nil)
	for range senders {
		switch r := <-results; {
		case r.err == nil:
			won = append(won, '0'+r.who)
		case sandbox.CodeOf(r.err) != sandbox.CodeConflict || !strings.Contains(r.err.Error(), "another link"):
			t.Errorf("a loser: %v", r.err)
		}
	}
	if len(won) != 1 {
		t.Fatalf("%d senders won", len(won))
	}
	holds(string(won))
	again, err := New(Config{Dir: p.dir, Log: p.log})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*Provider{p, again} {
		unread := hook(func() { t.Error("a refused archive was read") })
		if err := keep(p, up, unread); sandbox.CodeOf(err) != sandbox.CodeConflict {
			t.Errorf("another archive: %v", err)
		}
	}
	holds(string(won))
	// Another link of the owner works for another archive.
	up.Ticket = "u2.y"
	if err := keep(p, up, strings.NewReader("second")); err != nil {
		t.Fatal(err)
	}
	holds("second")
	// A ticket is remembered no longer than its archive.
	old := time.Now().Add(-sandbox.UploadRetention - time.Minute)
	if err := os.Chtimes(p.ticketFile(up.Ticket), old, old); err != nil {
		t.Fatal(err)
	}
	p.expireUploads()
	if _, err := os.Lstat(p.ticketFile(up.Ticket)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the used ticket is still there: %v", err)
	}
}

// hook is the end of content, and reports when it is read.
type hook func()

func (h hook) Read([]byte) (int, error) { h(); return 0, io.EOF }
