package preview

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

// fewTries makes a proxy run out of patience soon, and for good.
func fewTries(p *Proxy) {
	p.limiter = limits.NewLoginLimiter(limits.LoginLimiterConfig{Burst: 5, Refill: time.Hour})
}

// Attack: keys and links of a preview are guessed, in every place where they can be.
// After some failures, credentials are no longer checked. Visitors who were admitted
// already are not kept out, and neither are visitors of another preview.
func TestGuessingKeys(t *testing.T) {
	inside := new(seen)
	w, first := newHarness(t, inside)
	first.Close()
	front := serve(t, w, fewTries)
	honest := browser(t, front)
	at := "http://" + label + ".localhost/"
	if got := get(t, honest, at, keyHeader, goodKey); got.status != 200 {
		t.Fatalf("the key: %d", got.status)
	}
	unlock := func(key string) answer {
		return send(t, browser(t, front), "POST", "http://"+label+".localhost"+unlockPath, "key="+key, "Content-Type", "application/x-www-form-urlencoded", "Origin", "http://"+label+".localhost")
	}
	for i := range 12 {
		var got answer
		key := fmt.Sprint("guess", i)
		switch c := browser(t, front); i % 4 {
		case 0:
			got = get(t, c, at, keyHeader, key)
		case 1:
			got = get(t, c, at+"?"+keyQuery+"="+key)
		case 2:
			got = get(t, c, at+"?"+linkQuery+"=v1.1."+key)
		case 3:
			got = unlock(key)
		}
		want := http.StatusForbidden
		if i >= 5 {
			want = http.StatusTooManyRequests
		}
		if got.status != want {
			t.Errorf("guess %d: %d, want %d", i, got.status, want)
		}
		if want == http.StatusTooManyRequests && (got.header.Get("Retry-After") == "" || got.header.Get(errorHeader) != "quota_exceeded" || !strings.Contains(got.body, "try again in")) {
			t.Errorf("guess %d: %v %s", i, got.header, got.body)
		}
	}
	if got := get(t, browser(t, front), at, "Accept", "text/html", keyHeader, "again"); !strings.Contains(got.body, "Too many attempts") {
		t.Errorf("the page of one who tries too often: %s", got.body)
	}
	if got := get(t, honest, at, keyHeader, goodKey); got.status != 200 {
		t.Errorf("with a key that was good, from the same address: %d", got.status)
	}
	if got := get(t, browser(t, front), at); got.status != http.StatusUnauthorized {
		t.Errorf("with nothing: %d", got.status)
	}
	if got := get(t, browser(t, front), "http://3002-sbx-abc.localhost/", keyHeader, goodKey); got.status != 200 {
		t.Errorf("another preview: %d", got.status)
	}
	if got := get(t, browser(t, front), "http://3001-sbx-abc.localhost/", keyHeader, "whatever"); got.status != 200 {
		t.Errorf("a public preview: %d", got.status)
	}
	// A key that was good and no longer is counts as any other.
	p := New(Config{Previews: w, Log: discard()})
	fewTries(p)
	a := attemptAt(httptest.NewRequest("GET", at, nil), label, goodKey, "")
	for range 5 {
		p.limiter.Failed(a.by)
	}
	p.note(a, nil)
	if err := p.allow(a); err != nil {
		t.Errorf("a known key: %v", err)
	}
	p.note(a, sandbox.Errorf(sandbox.CodeForbidden, "it was renewed"))
	if p.allow(a) == nil {
		t.Error("a key that was renewed is still known")
	}
}

// Attack: links of a live view are guessed.
func TestGuessingViews(t *testing.T) {
	views := &pcs{until: time.Now().Add(time.Hour), hello: "RFB 003.008\n"}
	front := serve(t, &harness{}, func(p *Proxy) { p.views = views; fewTries(p) })
	c := browser(t, front)
	if got := get(t, c, pc+"/?cove_view=watch"); got.status != 200 {
		t.Fatalf("the link: %d", got.status)
	}
	for i := range 8 {
		path := []string{"/", "/screen", "/"}[i%3]
		want := http.StatusForbidden
		if i >= 5 {
			want = http.StatusTooManyRequests
		}
		if got := get(t, c, fmt.Sprintf("%s%s?cove_view=guess%d", pc, path, i), "Accept", "text/html"); got.status != want || want == 429 && !strings.Contains(got.body, "Too many attempts") {
			t.Errorf("guess %d: %d, want %d: %s", i, got.status, want, got.body)
		}
	}
	if got := get(t, c, pc+"/state?cove_view=guess"); !strings.Contains(got.body, "quota_exceeded") {
		t.Errorf("the page asks: %s", got.body)
	}
	if got := get(t, c, pc+"/?cove_view=watch"); got.status != 200 {
		t.Errorf("with a link that was good: %d", got.status)
	}
}

// Attack: visitors come to a sandbox that is waking, and go away at once. The work for
// each of them continues.
func TestVisitorsWhoWaitAreBounded(t *testing.T) {
	w, first := newHarness(t, new(seen))
	first.Close()
	w.hold = make(chan struct{})
	var proxy *Proxy
	front := serve(t, w, func(p *Proxy) { p.waiting.most, p.patience, proxy = 3, time.Millisecond, p })
	for i := range 6 {
		got := get(t, browser(t, front), "http://3001-sbx-abc.localhost/", "Accept", "text/html", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document")
		want := "waking"
		if i >= 3 {
			want = "quota_exceeded"
		}
		if got.header.Get(errorHeader) != want {
			t.Errorf("visitor %d: %s, want %s", i, got.header.Get(errorHeader), want)
		}
	}
	close(w.hold)
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if proxy.waiting.enter("3001-sbx-abc") {
			return
		}
		if time.Now().After(end) {
			t.Fatal("places are not free")
		}
	}
}

// Visitors who were admitted or refused no longer count as waiting.
func TestNobodyWaitsWhoHasAnAnswer(t *testing.T) {
	w, first := newHarness(t, new(seen))
	first.Close()
	p := New(Config{Previews: w, Log: slog.New(slog.DiscardHandler)})
	p.waiting.most = 1
	r := httptest.NewRequest("GET", "http://3001-sbx-abc.localhost/", nil)
	for range 1000 {
		if _, _, err := p.admit(t.Context(), httptest.NewRecorder(), r, place{label: "3001-sbx-abc"}, nil); errors.Is(err, errTooMany) {
			t.Fatal("the visitor before still waits")
		}
	}
}
