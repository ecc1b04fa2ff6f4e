package service

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/webhooks"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/vault"
	"github.com/cove-sh/cove/internal/daemon/webhook"
	"github.com/cove-sh/cove/sandbox"
)

// receiver is a server that gets webhooks.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	fails  int // guarded by mu; how many more times it fails
	header []http.Header
	news   []webhooks.Event
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.header = append(r.header, req.Header.Clone())
		if r.fails > 0 {
			r.fails--
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		var n webhooks.Event
		if err != nil || json.Unmarshal(body, &n) != nil {
			t.Errorf("body %q, %v", body, err)
		}
		r.news = append(r.news, n)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) told() []webhooks.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]webhooks.Event{}, r.news...)
}

// hooked returns a harness whose webhooks may go to loopback, do not time out, and are
// not repeated by themselves.
func hooked(t *testing.T) *harness {
	t.Helper()
	v, err := vault.Load(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	return newHarness(t, func(c *Config) {
		c.Vault, c.Webhooks = v, webhook.Config{AllowPrivate: true, Timeout: time.Hour, FirstWait: time.Hour}
	})
}

func (w *harness) hook(id, line string, hook sandbox.Webhook) *sandbox.Job {
	w.t.Helper()
	job, err := w.Exec(asRed(w.t), id, sandbox.ExecRequest{Shell: line, Background: true, Webhook: &hook}, nil)
	must(w.t, err)
	return job
}

func (w *harness) deliveries(id string) []sandbox.Delivery {
	w.t.Helper()
	list, err := w.ListDeliveries(asRed(w.t), id, sandbox.Page{})
	must(w.t, err)
	return list.Items
}

// delivered waits until the newest webhook of a sandbox is over.
func (w *harness) delivered(id, state string) sandbox.Delivery {
	w.t.Helper()
	var got []sandbox.Delivery
	wait(w.t, func() bool { got = w.deliveries(id); return len(got) > 0 && got[0].State == state },
		func() string { return fmt.Sprintf("the deliveries are %+v, want %s", got, state) })
	return got[0]
}

func TestWebhook(t *testing.T) {
	w, r := hooked(t), newReceiver(t)
	sbx := w.create(sandbox.CreateRequest{})
	const secret = "a secret of some length"
	job := w.hook(sbx.ID, "echo out; echo err >&2; exit 3", sandbox.Webhook{URL: r.URL, Secret: sandbox.NewSecretValue(secret), Headers: map[string]string{"Authorization": "Bearer token-of-mine"}})
	d := w.delivered(sbx.ID, store.DeliveryDelivered)
	if d.Attempts != 1 || d.Status != 200 || d.JobID != job.ID || d.SandboxID != sbx.ID || d.EndedAt == nil || d.Error != "" {
		t.Errorf("the delivery is %+v", d)
	}
	news := r.told()
	if len(news) != 1 {
		t.Fatalf("told %+v", news)
	}
	got := news[0].Data
	if got.JobID != job.ID || got.SandboxID != sbx.ID || got.State != "exited" || got.ExitCode == nil || *got.ExitCode != 3 || got.StdoutTail != "out\n" || got.StderrTail != "err\n" {
		t.Errorf("told %+v", got)
	}
	h := r.header[0]
	if h.Get("Authorization") != "Bearer token-of-mine" || h.Get("Webhook-Id") != d.ID || h.Get("Webhook-Signature") == "" || h.Get("Content-Type") != "application/json" {
		t.Errorf("headers are %v", h)
	}
	w.stop()
	for _, path := range []string{w.path, w.path + "-wal"} {
		data, err := os.ReadFile(path)
		if err == nil && (bytes.Contains(data, []byte(secret)) || bytes.Contains(data, []byte("token-of-mine"))) {
			t.Errorf("%s has the secret in clear", path)
		}
	}
	w.start()
}

// TestWebhookSurvives restarts the daemon while a job runs, and after a failed
// attempt.
func TestWebhookSurvives(t *testing.T) {
	w, r := hooked(t), newReceiver(t)
	r.fails = 1
	sbx := w.create(sandbox.CreateRequest{})
	w.hook(sbx.ID, "while ! [ -e go ]; do sleep 0.02; done; echo done", sandbox.Webhook{URL: r.URL, Secret: sandbox.NewSecretValue("0123456789")})
	if got := w.deliveries(sbx.ID); len(got) != 1 || got[0].State != store.DeliveryWaiting {
		t.Fatalf("deliveries are %+v", got)
	}
	w.restart()
	w.shell(sbx.ID, "touch go")
	d := w.delivered(sbx.ID, store.DeliveryPending)
	wait(t, func() bool { d = w.deliveries(sbx.ID)[0]; return d.Attempts == 1 }, func() string { return "no attempt is made" })
	if d.Status != 500 || d.Error == "" || d.NextAt == nil || time.Until(*d.NextAt) < time.Second {
		t.Errorf("after a failure: %+v", d)
	}
	// The next attempt is due while the daemon is down.
	all, _, err := w.store.ListDeliveries(t.Context(), store.DeliveryFilter{Open: true}, sandbox.Page{})
	must(t, err)
	w.stop()
	w.open()
	all[0].NextAt = ptr(time.Now())
	must(t, w.store.UpdateDelivery(t.Context(), all[0]))
	must(t, w.Start(t.Context()))
	d = w.delivered(sbx.ID, store.DeliveryDelivered)
	if news := r.told(); len(news) != 1 || news[0].Data.StdoutTail != "done\n" || d.Attempts != 2 {
		t.Errorf("told %+v; %+v", news, d)
	}
	if a, b := r.header[0].Get("Webhook-Id"), r.header[1].Get("Webhook-Id"); a != b {
		t.Errorf("the ids of two attempts differ: %s, %s", a, b)
	}
}

// TestWebhookLost kills a sandbox with a running job, and pauses another.
func TestWebhookLost(t *testing.T) {
	w, r := hooked(t), newReceiver(t)
	sbx := w.create(sandbox.CreateRequest{})
	w.hook(sbx.ID, "sleep 300", sandbox.Webhook{URL: r.URL})
	_, err := w.Kill(asRed(t), sbx.ID)
	must(t, err)
	w.delivered(sbx.ID, store.DeliveryDelivered)
	if news := r.told(); len(news) != 1 || news[0].Data.State != "lost" || news[0].Data.Reason == "" || news[0].Data.ExitCode != nil {
		t.Errorf("told %+v", news)
	}
}

// sentAtOnce is how many webhooks of one sandbox are sent at once.
const sentAtOnce = 4

// TestWebhookFair has one sandbox whose receiver never answers, and one whose receiver
// does.
func TestWebhookFair(t *testing.T) {
	w, r := hooked(t), newReceiver(t)
	var held atomic.Int64
	block := make(chan struct{})
	stalls := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		held.Add(1)
		_, _ = io.Copy(io.Discard, req.Body)
		select {
		case <-block:
		case <-req.Context().Done():
		}
	}))
	defer stalls.Close()
	defer close(block)
	slow, fair := w.create(sandbox.CreateRequest{}), w.create(sandbox.CreateRequest{})
	for range 20 {
		w.hook(slow.ID, "true", sandbox.Webhook{URL: stalls.URL})
	}
	wait(t, func() bool { return held.Load() >= sentAtOnce }, func() string { return "nothing is sent" })
	w.hook(fair.ID, "true", sandbox.Webhook{URL: r.URL})
	w.delivered(fair.ID, store.DeliveryDelivered)
	for _, d := range w.deliveries(slow.ID) {
		if d.Attempts > 0 {
			t.Fatal("the other sandbox's webhook has waited for those of the slow one")
		}
	}
}

func TestWebhookRefused(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Vault = nil })
	sbx := w.create(sandbox.CreateRequest{})
	for name, c := range map[string]struct {
		req  sandbox.ExecRequest
		code sandbox.Code
	}{
		"foreground": {sandbox.ExecRequest{Shell: "true", Webhook: &sandbox.Webhook{URL: "https://example.com"}}, sandbox.CodeInvalid},
		"private":    {sandbox.ExecRequest{Shell: "true", Background: true, Webhook: &sandbox.Webhook{URL: "http://127.0.0.1:1"}}, sandbox.CodeInvalid},
		"no vault":   {sandbox.ExecRequest{Shell: "true", Background: true, Webhook: &sandbox.Webhook{URL: "https://example.com", Secret: sandbox.NewSecretValue("0123456789")}}, sandbox.CodeUnsupported},
		"no job":     {sandbox.ExecRequest{Command: []string{"/no/such/program"}, Background: true, Webhook: &sandbox.Webhook{URL: "https://example.com"}}, sandbox.CodeNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.Exec(asRed(t), sbx.ID, c.req, nil)
			wantCode(t, err, c.code)
			if got := w.deliveries(sbx.ID); len(got) != 0 {
				t.Errorf("recorded %+v", got)
			}
		})
	}
}
