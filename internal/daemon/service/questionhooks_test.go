package service

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/daemon/service/webhooks"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/webhook"
	"github.com/cove-sh/cove/sandbox"
)

// post is a request that a receiver of questions got.
type post struct {
	header http.Header
	body   []byte
	said   webhooks.Question
}

// questionReceiver starts a server that fails the first requests, and returns its URL
// and what it got.
func questionReceiver(t *testing.T, fails int) (url string, posts func() []post) {
	t.Helper()
	var mu sync.Mutex
	var all []post
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		p := post{header: r.Header.Clone(), body: body}
		if err != nil || json.Unmarshal(body, &p.said) != nil {
			t.Errorf("body %q, %v", body, err)
		}
		mu.Lock()
		defer mu.Unlock()
		if all = append(all, p); len(all) <= fails {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL, func() []post {
		mu.Lock()
		defer mu.Unlock()
		return append([]post{}, all...)
	}
}

// told returns a harness with receivers of questions.
func told(t *testing.T, firstWait time.Duration, to ...webhooks.Receiver) *harness {
	t.Helper()
	return newHarness(t, func(c *Config) {
		c.Webhooks, c.Receivers = webhook.Config{AllowPrivate: true, Timeout: time.Hour, FirstWait: firstWait}, to
	})
}

func TestQuestionsByWebhook(t *testing.T) {
	const secret = "a secret of some length"
	url, posts := questionReceiver(t, 0)
	blue, ofBlue := questionReceiver(t, 0)
	w := told(t, time.Hour, webhooks.Receiver{Team: "red", Hook: sandbox.Webhook{URL: url + "/hooks/token?of=ours", Secret: sandbox.NewSecretValue(secret)}}, webhooks.Receiver{Team: "blue", Hook: sandbox.Webhook{URL: blue}})
	x := w.asking("x")
	w.engine.Ask(x.ID, asks(1))
	asked := w.await(sandbox.EventApprovalAsked, 1)[0]
	d := w.delivered(x.ID, store.DeliveryDelivered) // without all of the server's address
	if d.ApprovalID != asked.ID || d.JobID != "" || d.URL != url || d.Attempts != 1 {
		t.Errorf("the delivery is %+v", d)
	}
	got := posts()
	if len(got) != 1 || got[0].said.Type != "approval.asked" {
		t.Fatalf("told %+v", got)
	}
	if diff := cmp.Diff(asked, got[0].said.Data); diff != "" {
		t.Errorf("told otherwise than by events (-want +got):\n%s", diff)
	}
	h := got[0].header
	at, err := strconv.ParseInt(h.Get("Webhook-Timestamp"), 10, 64)
	must(t, err)
	if want := webhook.Sign([]byte(secret), d.ID, time.Unix(at, 0), got[0].body); h.Get("Webhook-Signature") != want || h.Get("Webhook-Id") != d.ID {
		t.Errorf("the headers are %v, want the signature %s", h, want)
	}
	if len(ofBlue()) != 0 {
		t.Error("another team is told")
	}
	// The end of a question is not sent, and a new daemon does not send it again.
	w.engine.Ask(x.ID, asks(1), asks(2))
	over := func() (n int) {
		for _, d := range w.deliveries(x.ID) {
			if d.State == store.DeliveryDelivered {
				n++
			}
		}
		return n
	}
	wait(t, func() bool { return over() == 2 }, func() string { return "the second question is not told" })
	w.restart()
	w.engine.Ask(x.ID, asks(1), asks(2), asks(3))
	wait(t, func() bool { return over() == 3 }, func() string { return "the third question is not told" })
	seen := map[string]int{}
	for _, p := range posts() {
		seen[p.said.Data.ID]++
	}
	if diff := cmp.Diff(map[string]int{asks(1).ID: 1, asks(2).ID: 1, asks(3).ID: 1}, seen); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

func TestQuestionsByWebhookAgain(t *testing.T) {
	url, posts := questionReceiver(t, 2)
	w := told(t, time.Millisecond, webhooks.Receiver{Team: "red", Hook: sandbox.Webhook{URL: url}})
	x := w.asking("x")
	w.engine.Ask(x.ID, asks(1))
	if d := w.delivered(x.ID, store.DeliveryDelivered); d.Attempts != 3 || d.Status != 200 {
		t.Errorf("the delivery is %+v", d)
	}
	all := posts()
	if len(all) != 3 || all[0].header.Get("Webhook-Id") != all[2].header.Get("Webhook-Id") || string(all[0].body) != string(all[2].body) {
		t.Errorf("told %+v", all)
	}
}

// A delivery is not repeated after the question is over.
func TestQuestionsByWebhookTooLate(t *testing.T) {
	url, posts := questionReceiver(t, 100)
	w := told(t, time.Hour, webhooks.Receiver{Team: "red", Hook: sandbox.Webhook{URL: url}})
	x := w.asking("x")
	w.engine.Ask(x.ID, asks(1))
	if d := w.delivered(x.ID, store.DeliveryFailed); d.Attempts != 1 || d.Status != 500 || d.Error == "" {
		t.Errorf("the delivery is %+v", d)
	}
	if len(posts()) != 1 {
		t.Errorf("told %d times", len(posts()))
	}
	// A delivery that an earlier daemon left open is not sent after the question is
	// over.
	past := time.Now().Add(-time.Second)
	must(t, w.store.CreateDelivery(t.Context(), store.Delivery{Team: "red", Until: &past, Body: []byte("{}"), Delivery: sandbox.Delivery{
		ID: "whd-late", SandboxID: x.ID, ApprovalID: asks(9).ID, URL: url, State: store.DeliveryPending, CreatedAt: time.Now().Add(time.Minute), NextAt: &past,
	}}, 0, 0))
	w.restart()
	if d := w.delivered(x.ID, store.DeliveryFailed); d.ID != "whd-late" || d.Attempts != 0 {
		t.Errorf("the delivery is %+v", d)
	}
	if len(posts()) != 1 {
		t.Errorf("told %d times", len(posts()))
	}
}

// A sandbox that asks without end takes half of the webhooks that can wait, and leaves
// the rest to jobs.
func TestQuestionsByWebhookAreBounded(t *testing.T) {
	block := make(chan struct{})
	stalls := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-block:
		case <-r.Context().Done():
		}
	}))
	defer stalls.Close()
	defer close(block)
	w := told(t, time.Hour, webhooks.Receiver{Team: "red", Hook: sandbox.Webhook{URL: stalls.URL}})
	x := w.asking("x")
	open := func() int {
		all := 0
		for _, err := range store.All(t.Context(), w.store.ListDeliveries, store.DeliveryFilter{Open: true}) {
			must(t, err)
			all++
		}
		return all
	}
	for i := range sandbox.MaxSandboxWebhooks/2 - 1 {
		must(t, w.store.CreateDelivery(t.Context(), store.Delivery{Team: "red", Delivery: sandbox.Delivery{
			ID: asks(i).ID, SandboxID: x.ID, URL: stalls.URL, State: store.DeliveryPending, CreatedAt: time.Now(),
		}}, 0, 0))
	}
	w.engine.Ask(x.ID, asks(1001), asks(1002))
	w.await(sandbox.EventApprovalAsked, 2)
	wait(t, func() bool { return open() == sandbox.MaxSandboxWebhooks/2 }, func() string { return "nothing is recorded" })
	w.hook(x.ID, "true", sandbox.Webhook{URL: stalls.URL})
	if got := open(); got != sandbox.MaxSandboxWebhooks/2+1 {
		t.Errorf("%d are open", got)
	}
}

func TestQuestionsToInternalAddressesAreRefused(t *testing.T) {
	w := newHarness(t)
	for _, url := range []string{"http://127.0.0.1:1", "http://localhost", "http://169.254.169.254/", "http://2130706433", "ftp://example.com", ""} {
		cfg := w.cfg
		cfg.Receivers = []webhooks.Receiver{{Team: "red", Hook: sandbox.Webhook{URL: url}}}
		if _, err := New(cfg); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%q: %v", url, err)
		}
	}
}
