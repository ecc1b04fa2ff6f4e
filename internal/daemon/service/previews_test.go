package service

import (
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/expose"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/sandbox"
)

// links returns a signer of links with the service's key.
func (w *harness) links() expose.Links { return expose.Links{Key: w.Service.cfg.PreviewKey} }

// visit opens a preview as a visitor without an API key.
func (w *harness) visit(label, key, link string) (*sandbox.Preview, error) {
	w.t.Helper()
	return w.VisitPreview(w.t.Context(), sandbox.PreviewVisit{Label: label, Key: key, Link: link})
}

func (w *harness) preview(name string, req sandbox.CreatePreviewRequest) *sandbox.NewPreview {
	w.t.Helper()
	p, err := w.CreatePreview(asRed(w.t), name, req)
	must(w.t, err)
	return p
}

// link signs a link and returns its signed part.
func (w *harness) link(name string, port int, req sandbox.PreviewLinkRequest) (string, *sandbox.PreviewLink) {
	w.t.Helper()
	l, err := w.LinkPreview(asRed(w.t), name, port, req)
	must(w.t, err)
	u, err := url.Parse(l.URL)
	must(w.t, err)
	return u.Query().Get(sandbox.PreviewLinkParam), l
}

func TestVisit(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	port := echo(t)
	x := w.create(sandbox.CreateRequest{Name: "x"})
	label := strconv.Itoa(port) + "-" + x.ID
	_, err := w.visit(label, "", "")
	wantCode(t, err, sandbox.CodeNotFound)
	made := w.preview("x", sandbox.CreatePreviewRequest{Port: port})
	if made.Key == "" || made.Access != sandbox.PreviewPrivate || made.URL != "http://"+label+".localhost" {
		t.Errorf("the preview is %+v", made)
	}
	link, _ := w.link("x", port, sandbox.PreviewLinkRequest{})
	for _, c := range []struct {
		what, key, link string
		want            sandbox.Code
	}{
		{"nothing", "", "", sandbox.CodeForbidden},
		{"another key", made.Key + "x", "", sandbox.CodeForbidden},
		{"the link as a key", link, "", sandbox.CodeForbidden},
		{"the key as a link", "", made.Key, sandbox.CodeForbidden},
		{"a cut link", "", link[:len(link)-1], sandbox.CodeForbidden},
		{"a longer link", "", link + "A", sandbox.CodeForbidden},
		{"a later link", "", strings.Replace(link, ".1", ".2", 1), sandbox.CodeForbidden},
		{"another version", "", strings.Replace(link, "v1", "v2", 1), sandbox.CodeForbidden},
		{"the key", made.Key, "", ""},
		{"the link", "", link, ""},
		{"a wrong key with the link", "wrong", link, ""},
	} {
		p, err := w.visit(label, c.key, c.link)
		if sandbox.CodeOf(err) != c.want {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
		if err == nil && (p.ID != made.ID || p.Port != port) {
			t.Errorf("%s: %+v", c.what, p)
		}
	}
	c, err := w.DialPreview(t.Context(), &made.Preview)
	must(t, err)
	says(t, c)
	// The key stays when the preview is changed, and goes when a new one is asked
	// for, with all links.
	if again := w.preview("x", sandbox.CreatePreviewRequest{Port: port, Wake: true}); again.Key != "" || again.ID != made.ID || !again.Wake {
		t.Errorf("changed: %+v", again)
	}
	_, err = w.visit(label, made.Key, "")
	must(t, err)
	renewed := w.preview("x", sandbox.CreatePreviewRequest{Port: port, NewKey: true})
	for _, old := range [][2]string{{made.Key, ""}, {"", link}} {
		_, err = w.visit(label, old[0], old[1])
		wantCode(t, err, sandbox.CodeForbidden)
	}
	_, err = w.visit(label, renewed.Key, "")
	must(t, err)
	w.restart()
	_, err = w.visit(label, renewed.Key, "")
	must(t, err)
	// A public one opens to all, and needs no link.
	w.preview("x", sandbox.CreatePreviewRequest{Port: port, Access: sandbox.PreviewPublic})
	public, err := w.visit(label, "", "")
	must(t, err)
	_, err = w.LinkPreview(ctx, "x", port, sandbox.PreviewLinkRequest{})
	wantCode(t, err, sandbox.CodeConflict)
	// A visitor whom the old preview admitted is no longer let through.
	w.preview("x", sandbox.CreatePreviewRequest{Port: port})
	_, err = w.DialPreview(t.Context(), public)
	wantCode(t, err, sandbox.CodeNotFound)
	must(t, w.DeletePreview(ctx, "x", port))
	must(t, w.DeletePreview(ctx, "x", port))
	_, err = w.DialPreview(t.Context(), &renewed.Preview)
	wantCode(t, err, sandbox.CodeNotFound)
	// A preview that is deleted and made again is a new one, with new links.
	w.preview("x", sandbox.CreatePreviewRequest{Port: port})
	_, err = w.visit(label, renewed.Key, "")
	wantCode(t, err, sandbox.CodeForbidden)
}

// With WithFirst, a call neither changes a preview nor replaces a private one that has
// ended.
func TestFirstPreview(t *testing.T) {
	w := newHarness(t)
	first := sandbox.WithFirst(asRed(t))
	w.create(sandbox.CreateRequest{Name: "x"})
	w.preview("x", sandbox.CreatePreviewRequest{Port: 1})
	w.preview("x", sandbox.CreatePreviewRequest{Port: 2})
	must(t, w.DeletePreview(asRed(t), "x", 2))
	w.preview("x", sandbox.CreatePreviewRequest{Port: 3, Access: sandbox.PreviewPublic})
	must(t, w.DeletePreview(asRed(t), "x", 3))
	for port, want := range map[int]sandbox.Code{1: sandbox.CodeConflict, 2: sandbox.CodeConflict, 3: "", 4: ""} {
		_, err := w.CreatePreview(first, "x", sandbox.CreatePreviewRequest{Port: port, Access: sandbox.PreviewPublic})
		if sandbox.CodeOf(err) != want {
			t.Errorf("port %d: %v, want %q", port, err, want)
		}
	}
	list, err := w.ListPreviews(asRed(t), "x", sandbox.Page{})
	must(t, err)
	if len(list.Items) != 3 || list.Items[0].Access != sandbox.PreviewPrivate {
		t.Errorf("then there are %+v", list.Items)
	}
}

// TestLabels visits with labels that are not spelled exactly as previews are.
func TestLabels(t *testing.T) {
	w := newHarness(t)
	x := w.create(sandbox.CreateRequest{Name: "name"})
	w.preview("name", sandbox.CreatePreviewRequest{Port: 80, Access: sandbox.PreviewPublic})
	_, err := w.visit("80-"+x.ID, "", "")
	must(t, err)
	for _, label := range []string{
		"", "80", "-" + x.ID, "080-" + x.ID, "80-name", "80-" + strings.ToUpper(x.ID), "80-" + x.ID + ".x", "80-" + x.ID + "\n", " 80-" + x.ID,
		"80--" + x.ID, "+80-" + x.ID, "80-" + x.ID[:len(x.ID)-1], "65616-" + x.ID, "81-" + x.ID, "80-" + x.ID + "%", "٨0-" + x.ID,
		"80-sbx-" + strings.Repeat("a", 26),
	} {
		_, err := w.visit(label, "", "")
		if wantCode(t, err, sandbox.CodeNotFound); err.Error() != expose.ErrNoPreview.Error() {
			t.Errorf("%q: %v", label, err)
		}
	}
}

func FuzzVisit(f *testing.F) {
	w := newHarness(f)
	x := w.create(sandbox.CreateRequest{})
	made := w.preview(x.ID, sandbox.CreatePreviewRequest{Port: 80})
	label := "80-" + x.ID
	link, _ := w.link(x.ID, 80, sandbox.PreviewLinkRequest{})
	f.Add(label, made.Key, link)
	f.Add(label, "", "v1.99999999999999999999.AAAA")
	f.Add(label, "", "v1..")
	f.Add("80-sbx-", "a", "v1.1")
	f.Fuzz(func(t *testing.T, l, key, signed string) {
		_, err := w.VisitPreview(t.Context(), sandbox.PreviewVisit{Label: l, Key: key, Link: signed})
		switch code := sandbox.CodeOf(err); {
		case code == sandbox.CodeNotFound || code == sandbox.CodeForbidden:
		case err == nil && l == label && (key == made.Key || signed == link):
		default:
			t.Errorf("visit of %q with %q and %q: %v", l, key, signed, err)
		}
	})
}

// TestVisitOfPaused visits previews of sandboxes that do not run. A sandbox is resumed
// only if its preview allows that, and only for an admitted visitor.
func TestVisitOfPaused(t *testing.T) {
	w := newHarness(t)
	port := echo(t)
	x := w.create(sandbox.CreateRequest{Name: "x"})
	label := strconv.Itoa(port) + "-" + x.ID
	made := w.preview("x", sandbox.CreatePreviewRequest{Port: port})
	w.pause("x")
	paused := func(what string) {
		t.Helper()
		if got := w.get("x").State; got != sandbox.StatePaused {
			t.Errorf("%s: it is %s", what, got)
		}
	}
	_, err := w.visit(label, made.Key, "")
	wantCode(t, err, sandbox.CodeNotRunning)
	_, err = w.DialPreview(t.Context(), &made.Preview)
	wantCode(t, err, sandbox.CodeNotRunning)
	paused("may not be woken")
	_, err = w.CreatePreview(asRed(t), "x", sandbox.CreatePreviewRequest{Port: port, Wake: true})
	must(t, err)
	_, err = w.visit(label, "wrong", "")
	wantCode(t, err, sandbox.CodeForbidden)
	_, err = w.visit("1"+label, made.Key, "")
	wantCode(t, err, sandbox.CodeNotFound)
	paused("visitors who may not")
	_, err = w.visit(label, made.Key, "")
	must(t, err)
	if got := w.get("x").State; got != sandbox.StateRunning {
		t.Errorf("after a visit it is %s", got)
	}
	w.pause("x")
	c, err := w.DialPreview(t.Context(), &made.Preview)
	must(t, err)
	says(t, c)
	_, err = w.Kill(asRed(t), "x")
	must(t, err)
	_, err = w.visit(label, "wrong", "")
	wantCode(t, err, sandbox.CodeForbidden)
	_, err = w.visit(label, made.Key, "")
	wantCode(t, err, sandbox.CodeNotRunning)
	if strings.Contains(err.Error(), "key-red") || strings.Contains(err.Error(), x.ID) {
		t.Errorf("a stranger is told %q", err)
	}
	_, err = w.CreatePreview(asRed(t), x.ID, sandbox.CreatePreviewRequest{Port: port})
	wantCode(t, err, sandbox.CodeNotRunning)
}

// TestStrangersLearnLittle makes a resume fail: a visitor must not see what its owner
// would.
func TestStrangersLearnLittle(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Quota.VCPUs = 1 })
	x := w.create(sandbox.CreateRequest{Name: "x"})
	w.preview("x", sandbox.CreatePreviewRequest{Port: 80, Access: sandbox.PreviewPublic, Wake: true})
	w.pause("x")
	w.create(sandbox.CreateRequest{})
	_, err := w.visit("80-"+x.ID, "", "")
	wantCode(t, err, sandbox.CodeUnavailable)
	if strings.Contains(err.Error(), "quota") || strings.Contains(err.Error(), "team") {
		t.Errorf("a stranger is told %q", err)
	}
}

// talk opens a connection to a preview of an echo, and has an answer.
func (w *harness) talk(p *sandbox.Preview) (net.Conn, error) {
	c, err := w.DialPreview(w.t.Context(), p)
	if err != nil {
		return nil, err
	}
	if _, err = io.WriteString(c, "x"); err == nil {
		_, err = io.ReadFull(c, make([]byte, 1))
	}
	if err != nil {
		_ = c.Close()
	}
	return c, err
}

// TestPreviewsEnd has open connections when a preview ends.
func TestPreviewsEnd(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	port := echo(t)
	x := w.create(sandbox.CreateRequest{Name: "x"})
	label := strconv.Itoa(port) + "-" + x.ID
	for what, end := range map[string]func(){
		"delete":  func() { must(t, w.DeletePreview(ctx, "x", port)) },
		"new key": func() { w.preview("x", sandbox.CreatePreviewRequest{Port: port, NewKey: true}) },
		"expiry":  func() {},
	} {
		req := sandbox.CreatePreviewRequest{Port: port}
		if what == "expiry" {
			req.ExpiresInSeconds = 1
		}
		must(t, w.DeletePreview(ctx, "x", port))
		made := w.preview("x", req)
		c, err := w.talk(&made.Preview)
		for what == "expiry" && err != nil && req.ExpiresInSeconds < 60 { // it may be over before the answer
			req.ExpiresInSeconds *= 2
			must(t, w.DeletePreview(ctx, "x", port))
			made = w.preview("x", req)
			c, err = w.talk(&made.Preview)
		}
		must(t, err)
		end()
		if _, err := io.ReadAll(c); err == nil {
			t.Errorf("%s: the connection ended in good order", what)
		}
		_ = c.Close()
		if what == "expiry" {
			_, err = w.visit(label, made.Key, "")
			wantCode(t, err, sandbox.CodeNotFound)
			list, err := w.ListPreviews(ctx, "x", sandbox.Page{})
			if err != nil || len(list.Items) != 0 {
				t.Errorf("expired ones are listed: %+v, %v", list, err)
			}
			_, err = w.LinkPreview(ctx, "x", port, sandbox.PreviewLinkRequest{})
			wantCode(t, err, sandbox.CodeNotFound)
		}
	}
}

func TestLinks(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	x := w.create(sandbox.CreateRequest{Name: "x"})
	w.preview("x", sandbox.CreatePreviewRequest{Port: 80, ExpiresInSeconds: 7200})
	base := "http://80-" + x.ID + ".localhost"
	for path, want := range map[string]string{
		"": base + "/?", "/": base + "/?", "/docs/a%20b": base + "/docs/a%20b?", "/q?b=2&a=1": base + "/q?a=1&b=2&", "/?cove_preview=x": base + "/?",
	} {
		_, l := w.link("x", 80, sandbox.PreviewLinkRequest{Path: path})
		if !strings.HasPrefix(l.URL, want+sandbox.PreviewLinkParam+"=v1.") {
			t.Errorf("%q leads to %s", path, l.URL)
		}
		if d := time.Until(l.ExpiresAt); d < 59*time.Minute || d > time.Hour {
			t.Errorf("it expires in %v", d)
		}
	}
	for _, path := range []string{
		"x", "//evil.example/", `/\evil.example`, "http://evil.example/", "/a#b", "/a\x00", "/a\nb", "/%zz", "/" + strings.Repeat("x", 2048),
	} {
		_, err := w.LinkPreview(ctx, "x", 80, sandbox.PreviewLinkRequest{Path: path})
		wantCode(t, err, sandbox.CodeInvalid)
	}
	for _, seconds := range []int64{-1, int64(sandbox.MaxPreviewLink/time.Second) + 1} {
		_, err := w.LinkPreview(ctx, "x", 80, sandbox.PreviewLinkRequest{ExpiresInSeconds: seconds})
		wantCode(t, err, sandbox.CodeInvalid)
	}
	// A link is valid no longer than its preview.
	if _, l := w.link("x", 80, sandbox.PreviewLinkRequest{ExpiresInSeconds: 100_000}); time.Until(l.ExpiresAt) > 2*time.Hour {
		t.Errorf("it expires at %v", l.ExpiresAt)
	}
	p, err := w.store.Preview(ctx, x.ID, 80)
	must(t, err)
	if !w.links().OpensPreview(&p, w.links().SignPreview(&p, time.Now().Add(time.Minute))) || w.links().OpensPreview(&p, w.links().SignPreview(&p, time.Now().Add(-time.Second))) {
		t.Error("the expiry of a link is not kept to")
	}
	_, err = w.LinkPreview(ctx, "x", 81, sandbox.PreviewLinkRequest{})
	wantCode(t, err, sandbox.CodeNotFound)
}

func TestPreviewLists(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	x := w.create(sandbox.CreateRequest{Name: "x"})
	w.create(sandbox.CreateRequest{Name: "y"})
	for _, name := range []string{"x", "y"} {
		for _, port := range []int{81, 80} {
			w.preview(name, sandbox.CreatePreviewRequest{Port: port})
		}
	}
	count := func(ref string) int {
		t.Helper()
		list, err := w.ListPreviews(ctx, ref, sandbox.Page{})
		must(t, err)
		for _, p := range list.Items {
			if p.URL == "" {
				t.Errorf("no URL: %+v", p)
			}
		}
		return len(list.Items)
	}
	if a, b := count("x"), count(""); a != 2 || b != 4 {
		t.Errorf("listed: %d and %d", a, b)
	}
	list, err := w.ListPreviews(as(t.Context(), "blue"), "", sandbox.Page{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("another team sees %+v, %v", list, err)
	}
	// A fork has no previews of its parent.
	w.fork("x", sandbox.ForkRequest{Name: "f"})
	if n := count("f"); n != 0 {
		t.Errorf("a fork has %d previews", n)
	}
	_, err = w.Merge(ctx, "x", sandbox.MergeRequest{Winner: "f"})
	must(t, err)
	if n := count("x"); n != 2 {
		t.Errorf("after a merge it has %d previews", n)
	}
	_, err = w.Kill(ctx, "y")
	must(t, err)
	if n := count(""); n != 2 {
		t.Errorf("after a kill %d are listed", n)
	}
	for _, bad := range []sandbox.CreatePreviewRequest{
		{}, {Port: -1}, {Port: 65536}, {Port: validate.AgentPort}, {Port: 1, Access: "secret"}, {Port: 1, ExpiresInSeconds: -1},
	} {
		_, err := w.CreatePreview(ctx, "x", bad)
		wantCode(t, err, sandbox.CodeInvalid)
	}
	for port := range sandbox.MaxPreviews - 2 {
		w.preview("x", sandbox.CreatePreviewRequest{Port: 1000 + port})
	}
	_, err = w.CreatePreview(ctx, "x", sandbox.CreatePreviewRequest{Port: 2000})
	wantCode(t, err, sandbox.CodeQuotaExceeded)
	// Keys are not stored.
	p, err := w.store.Preview(ctx, x.ID, 80)
	must(t, err)
	if len(p.KeyHash) != 32 {
		t.Errorf("the record is %+v", p)
	}
	must(t, w.store.DeleteSandbox(ctx, x.ID))
	all, _, err := w.store.ListPreviews(ctx, "red", "", x.ID, time.Now(), sandbox.Page{})
	if err != nil || len(all) != 0 {
		t.Errorf("without their sandbox: %v, %v", all, err)
	}
}
