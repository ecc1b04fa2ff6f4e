package service

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/service/webhooks"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// A receiver in the format of HOPX gets what HOPX documents, signed over timestamp and
// body.
func TestWebhookFormatHOPX(t *testing.T) {
	const secret = "short" // of any length
	type post struct {
		header http.Header
		body   []byte
	}
	posts := make(chan post, 8)
	r := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		posts <- post{req.Header.Clone(), body}
	}))
	t.Cleanup(r.Close)
	w := hooked(t)
	sbx := w.create(sandbox.CreateRequest{})
	for _, tt := range []struct {
		line    string
		timeout int64
		want    webhooks.HOPXEvent
	}{
		{"echo out; echo err >&2", 0, webhooks.HOPXEvent{Status: "completed", Success: true, Stdout: "out\n", Stderr: "err\n"}},
		{"exit 3", 0, webhooks.HOPXEvent{Status: "failed", ExitCode: 3}},
		{"sleep 1000", 50, webhooks.HOPXEvent{Status: "timeout", ExitCode: 124, Error: "it took longer than its timeout"}},
	} {
		job, err := w.Exec(asRed(t), sbx.ID, sandbox.ExecRequest{
			Shell: tt.line, Background: true, TimeoutMS: tt.timeout,
			Webhook: &sandbox.Webhook{URL: r.URL, Secret: sandbox.NewSecretValue(secret), Headers: map[string]string{"X-Mine": "yes"}, Format: sandbox.WebhookHOPX},
		}, nil)
		must(t, err)
		w.delivered(sbx.ID, store.DeliveryDelivered)
		p := <-posts
		var got webhooks.HOPXEvent
		must(t, json.Unmarshal(p.body, &got))
		if got.ExecutionID != "exec_"+job.ID || got.Timestamp.IsZero() {
			t.Errorf("%s: told %s", tt.line, p.body)
		}
		got.ExecutionID, got.Timestamp, got.ExecutionTime = "", tt.want.Timestamp, 0
		if got != tt.want {
			t.Errorf("%s: told %+v, want %+v", tt.line, got, tt.want)
		}
		mac := hmac.New(sha256.New, []byte(secret))
		io.WriteString(mac, p.header.Get("X-Hopx-Timestamp")+string(p.body))
		if want := "sha256=" + hex.EncodeToString(mac.Sum(nil)); p.header.Get("X-Hopx-Signature") != want || p.header.Get("X-Mine") != "yes" || p.header.Get("Webhook-Id") != "" {
			t.Errorf("headers %v, want the signature %s", p.header, want)
		}
	}
	for name, hook := range map[string]sandbox.Webhook{
		"unknown format": {URL: r.URL, Format: "other"},
		"our header":     {URL: r.URL, Format: sandbox.WebhookHOPX, Headers: map[string]string{"x-hopx-signature": "sha256=00"}},
		"long secret":    {URL: r.URL, Format: sandbox.WebhookHOPX, Secret: sandbox.NewSecretValue(strings.Repeat("x", 1025))},
	} {
		_, err := w.Exec(asRed(t), sbx.ID, sandbox.ExecRequest{Shell: "true", Background: true, Webhook: &hook}, nil)
		if sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}
