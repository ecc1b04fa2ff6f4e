package control

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/access"
	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/sandbox"
)

func wantInvalid(t *testing.T, name string, err error, says string) {
	t.Helper()
	if err == nil || answer.Of(err).Status != http.StatusBadRequest || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: %v, want one that says %q", name, err, says)
	}
}

func TestLifeOf(t *testing.T) {
	for _, c := range []struct {
		name           string
		idle, del, ttl int64
		want           life
		fails          string
	}{
		{"the default", 15, -1, 0, life{idle: 900, onTimeout: sandbox.ActionPause}, ""},
		{"no idle time", 0, -1, 0, life{onTimeout: sandbox.ActionKill}, ""},
		{"ephemeral", 15, 0, 0, life{idle: 900, onTimeout: sandbox.ActionKill}, ""},
		{"deleted after an hour", 15, 60, 0, life{idle: 900, paused: 3600, onTimeout: sandbox.ActionPause}, ""},
		{"a lifetime", 0, -1, 10, life{lifetime: 600, onTimeout: sandbox.ActionKill}, ""},
		{"a lifetime of an ephemeral one", 5, 0, 10, life{idle: 300, lifetime: 600, onTimeout: sandbox.ActionKill}, ""},
		{"a lifetime and an idle time", 5, -1, 10, life{}, "ttlMinutes"},
		{"less than nothing", -1, -1, 0, life{}, "autoStopInterval"},
		{"too long", 0, maxMinutes + 1, 0, life{}, "autoDeleteInterval"},
	} {
		got, err := lifeOf(c.idle, c.del, c.ttl)
		if c.fails != "" {
			wantInvalid(t, c.name, err, c.fails)
		} else if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v, want %+v", c.name, got, err, c.want)
		}
	}
}

func TestRequest(t *testing.T) {
	var body createBody
	err := answer.Parse([]byte(`{"name":"n","env":{"A":"b"},"labels":{"l":"m"},"public":true,"autoPauseInterval":5,"autoArchiveInterval":7,
		"volumes":[{"volumeId":"v","mountPath":"/m"}],"secrets":[{"KEY":"one"},{"OTHER":"two"}],"domainAllowList":"example.com, *.example.org"}`), &body)
	if err != nil {
		t.Fatal(err)
	}
	got, err := body.request()
	if err != nil {
		t.Fatal(err)
	}
	want := &sandbox.CreateRequest{
		Name: "n", Env: map[string]string{"A": "b"}, LifetimeSeconds: new(int64), IdleTimeoutSeconds: new(int64(300)), OnTimeout: sandbox.ActionPause,
		Metadata: map[string]string{"l": "m", access.TagPublic: "on", access.TagAutoPause: "on", access.TagArchive: "7"},
		Mounts:   []sandbox.Mount{{Volume: "v", Target: "/m"}}, Secrets: map[string]string{"KEY": "one", "OTHER": "two"},
		Network: &sandbox.NetworkPolicy{AllowOut: []string{"example.com", "*.example.org"}, DenyOut: []string{everything}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Each field that would have no effect is refused by its name.
func TestCreateRefuses(t *testing.T) {
	for field, text := range map[string]string{
		"gpu": `{"gpu":1}`, "gpuType": `{"gpuType":["a"]}`, "spot": `{"spot":true}`, "outboundProxyUrl": `{"outboundProxyUrl":"http://a"}`,
		"linkedSandbox": `{"linkedSandbox":"a"}`, "otelEndpointOverride": `{"otelEndpointOverride":"a"}`, "kvm": `{"kvm":true}`, "target": `{"target":"us"}`,
		"sandboxClass": `{"sandboxClass":"windows"}`, "cpu": `{"cpu":1}`, "buildInfo": `{"snapshot":"a","buildInfo":{}}`, "labels": `{"labels":{"cove.x":"y"}}`,
		"subpath": `{"volumes":[{"volumeId":"v","mountPath":"/m","subpath":"s"}]}`, "autoPauseInterval": `{"autoPauseInterval":1,"autoStopInterval":1}`,
		"autoArchiveInterval": `{"autoArchiveInterval":-1}`, "later": `{"later":1}`, "networkBlockAll": `{"networkBlockAll":true,"domainAllowList":"a.b"}`,
	} {
		var body createBody
		err := answer.Parse([]byte(text), &body)
		if err == nil {
			err = body.check()
		}
		if err == nil {
			_, err = body.request()
		}
		wantInvalid(t, field, err, field)
	}
}

func TestPolicyOf(t *testing.T) {
	kept := &sandbox.NetworkPolicy{DenyOut: []string{"192.0.2.1", everything}, AllowOut: []string{"a.example"}, MaxConnections: 7}
	for _, c := range []struct {
		name string
		was  *sandbox.NetworkPolicy
		body networkBody
		want *sandbox.NetworkPolicy
	}{
		{"nothing", nil, networkBody{BlockAll: new(false)}, nil},
		{"all blocked", nil, networkBody{BlockAll: new(true)}, &sandbox.NetworkPolicy{DenyOut: []string{everything}}},
		{"opened", kept, networkBody{BlockAll: new(false)}, &sandbox.NetworkPolicy{DenyOut: []string{"192.0.2.1"}, MaxConnections: 7}},
		{"both lists", kept, networkBody{CIDRs: new("198.51.100.0/24,2001:db8::1"), Domains: new(" b.example ,")},
			&sandbox.NetworkPolicy{AllowOut: []string{"198.51.100.0/24", "2001:db8::1", "b.example"}, DenyOut: []string{"192.0.2.1", everything}, MaxConnections: 7}},
	} {
		got, err := policyOf(c.was, c.body)
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", c.name, err, diff)
		}
	}
	if len(kept.DenyOut) != 2 || kept.DenyOut[1] != everything {
		t.Errorf("the policy that was there has changed: %+v", kept)
	}
}

// A list continues after the end of a page, even if the last sandbox of the page is
// gone.
func TestPages(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	all := func() []object {
		var list []object
		for i, id := range []string{"c", "a", "d", "b"} {
			list = append(list, object{ID: id, Name: id, CPU: 10 - i, Memory: float64(i % 2), CreatedAt: at.Add(time.Duration(i) * time.Second), State: access.Started})
		}
		return list
	}
	for query, want := range map[string]string{
		"sort=createdAt&order=asc": "cadb", "": "bdac", "sort=cpu&order=asc": "bdac", "sort=memoryGib&order=asc": "cdab", "sort=name&order=asc": "abcd",
		"maxCpu=9": "bda", "minMemoryGiB=1": "ba", "createdAtAfter=2026-01-01T00:00:02Z": "bd", "id=A": "a", "states=started&states=stopped": "bdac", "states=stopped": "", "name=a": "a",
		"isPublic=true": "", "isRecoverable=false": "bdac", "autoDestroyAtBefore=2030-01-01T00:00:00Z": "",
	} {
		got, cursor := "", ""
		for range 9 {
			values, err := url.ParseQuery(query)
			if err != nil {
				t.Fatal(err)
			}
			values.Set("limit", "1")
			if cursor != "" {
				values.Set("cursor", cursor)
			}
			q, err := readQuery(values)
			if err != nil {
				t.Fatalf("%s: %v", query, err)
			}
			left := slices.DeleteFunc(all(), func(o object) bool { return strings.HasSuffix(got, o.ID) }) // the last one is gone
			page, next := q.page(left)
			for _, o := range page {
				got += o.ID
			}
			if next == nil {
				break
			}
			cursor = *next
		}
		if got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	q, err := readQuery(url.Values{"limit": {"1"}})
	if err != nil {
		t.Fatal(err)
	}
	_, next := q.page(all())
	if _, err := readQuery(url.Values{"cursor": {*next}, "order": {"asc"}}); err == nil {
		t.Error("a cursor is good for another order")
	}
}
