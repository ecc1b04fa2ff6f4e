package service

import (
	"context"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/template/image"
	"github.com/cove-sh/cove/internal/testing/faketemplates"
	"github.com/cove-sh/cove/sandbox"
)

// cellar is a provider of templates that keeps archives.
type cellar struct {
	*faketemplates.Provider
	kept map[string]string
	// tickets are the tickets of all archives that were received.
	tickets []string
}

func (c *cellar) KeepArchive(_ context.Context, up image.Upload, content io.Reader) (*sandbox.ArchiveUpload, error) {
	name := up.Name
	data, err := io.ReadAll(io.LimitReader(content, up.Most+1))
	if err != nil || int64(len(data)) > up.Most {
		return nil, sandbox.Errorf(sandbox.CodeTooLarge, "too much")
	}
	c.kept[name], c.tickets = string(data), append(c.tickets, up.Ticket)
	return &sandbox.ArchiveUpload{Archive: name}, nil
}

func (c *cellar) HasArchive(name string) bool { _, ok := c.kept[name]; return ok }

func (c *cellar) Copy(context.Context, *image.Foundation, *sandbox.TemplateCopy, bool) (*image.Foundation, bool, error) {
	return nil, false, sandbox.Errorf(sandbox.CodeUnsupported, "no")
}

// Attack: links that were changed, made up or have expired, and teams that use the same
// names. A link is for one archive of one team, up to a size.
func TestUploadLinks(t *testing.T) {
	c := &cellar{kept: map[string]string{}}
	w := newHarness(t, func(cfg *Config) { cfg.UploadURL = func(link string) string { return "http://here/" + link } })
	c.Provider = w.templates
	w.provider = c
	w.restart()
	link := func(team string, size int64) *sandbox.UploadLink {
		t.Helper()
		l, err := w.LinkUpload(as(t.Context(), team), sandbox.UploadLinkRequest{Name: "hash", SizeBytes: size})
		must(t, err)
		return l
	}
	send := func(l, content string) error {
		_, err := w.ReceiveUpload(t.Context(), strings.TrimPrefix(l, "http://here/"), -1, strings.NewReader(content))
		return err
	}
	red, blue := link("red", 4), link("blue", 4)
	if red.Present || red.Archive == blue.Archive || !regexp.MustCompile(`^upload-[a-z2-7]{26}$`).MatchString(red.Archive) || red.Archive != link("red", 9).Archive {
		t.Errorf("the links are %+v and %+v", red, blue)
	}
	for name, l := range map[string]string{
		"none": "", "dots": "....", "no signature": strings.TrimSuffix(red.URL, red.URL[len(red.URL)-5:]), "another archive": strings.Replace(red.URL, red.Archive, blue.Archive, 1),
		"more": strings.Replace(red.URL, ".4.", ".400.", 1), "long": red.URL + strings.Repeat("A", 300),
		"later":   strings.Replace(red.URL, ".4.1", ".4.2", 1),
		"expired": w.Builder.SignUpload(red.Archive, 4, time.Now().Add(-time.Second)),
	} {
		if err := send(l, "data"); sandbox.CodeOf(err) != sandbox.CodeForbidden {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := send(red.URL, "data+"); sandbox.CodeOf(err) != sandbox.CodeTooLarge || len(c.kept) > 0 {
		t.Errorf("too much: %v, kept %v", err, c.kept)
	}
	must(t, send(red.URL, "data"))
	must(t, send(link("red", 4).URL, "data"))
	if len(c.tickets) != 2 || c.tickets[0] == "" || c.tickets[0] == c.tickets[1] {
		t.Errorf("two links are good for one archive each, with the tickets %q", c.tickets)
	}
	if !link("red", 4).Present || link("blue", 4).Present || c.kept[red.Archive] != "data" {
		t.Errorf("kept %v", c.kept)
	}
	for _, req := range []sandbox.UploadLinkRequest{{SizeBytes: 1}, {Name: "x"}, {Name: strings.Repeat("x", 257), SizeBytes: 1}, {Name: "x", SizeBytes: -1}, {Name: "x", SizeBytes: sandbox.MaxUploadBytes + 1}, {Name: "a\x00", SizeBytes: 1}} {
		_, err := w.LinkUpload(as(t.Context(), "red"), req)
		wantCode(t, err, sandbox.CodeInvalid)
	}
	w.cfg.UploadURL = nil
	w.restart()
	_, err := w.LinkUpload(as(t.Context(), "blue"), sandbox.UploadLinkRequest{Name: "x", SizeBytes: 1})
	wantCode(t, err, sandbox.CodeUnsupported)
}

func TestCopyStepRefused(t *testing.T) {
	w := newHarness(t)
	good := "upload-" + strings.Repeat("a", 26)
	for name, step := range map[string]sandbox.TemplateStep{
		"with a command": {Run: "true", Copy: &sandbox.TemplateCopy{Archive: good, To: "/x"}}, "with a user": {User: "root", Copy: &sandbox.TemplateCopy{Archive: good, To: "/x"}},
		"a path": {Copy: &sandbox.TemplateCopy{Archive: "../x", To: "/x"}}, "relative": {Copy: &sandbox.TemplateCopy{Archive: good, To: "x"}}, "nowhere": {Copy: &sandbox.TemplateCopy{Archive: good}},
		"not clean": {Copy: &sandbox.TemplateCopy{Archive: good, To: "/a/../b"}}, "memory": {Copy: &sandbox.TemplateCopy{Archive: good, To: "/tmp/"}},
		"source out": {Copy: &sandbox.TemplateCopy{Archive: good, To: "/x", Sources: []string{"a/../../b"}}}, "no source": {Copy: &sandbox.TemplateCopy{Archive: good, To: "/x", Sources: []string{""}}},
		"slow": {Copy: &sandbox.TemplateCopy{Archive: good, To: "/x", Sources: []string{strings.Repeat("**/", 5) + "x"}}},
	} {
		spec := steps()
		spec.Run = []sandbox.TemplateStep{step}
		_, err := w.StartBuild(asRed(t), sandbox.BuildTemplateRequest{Name: "x", Spec: spec})
		if sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}
