package access

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

func TestState(t *testing.T) {
	pausedAt := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
	box := func(state sandbox.State, metadata map[string]string) *sandbox.Sandbox {
		return &sandbox.Sandbox{State: state, PausedAt: &pausedAt, Metadata: metadata}
	}
	as := func(state string, more ...string) map[string]string {
		key, value := PausedAs(box(sandbox.StatePaused, nil), state)
		m := map[string]string{key: value}
		for i := 0; i < len(more); i += 2 {
			m[more[i]] = more[i+1]
		}
		return m
	}
	stale := map[string]string{}
	for key, value := range as(Archived) {
		stale[key] = value + "0"
	}
	for name, c := range map[string]struct {
		box   *sandbox.Sandbox
		after time.Duration
		want  string
	}{
		"runs":                                 {box(sandbox.StateRunning, as(Archived)), 0, Started},
		"is made":                              {box(sandbox.StateCreating, nil), 0, Creating},
		"ends":                                 {box(sandbox.StateStopping, nil), 0, Destroying},
		"was killed":                           {box(sandbox.StateKilled, nil), 0, Destroyed},
		"has failed":                           {box(sandbox.StateFailed, nil), 0, Failed},
		"paused by its idle time":              {box(sandbox.StatePaused, nil), 0, Stopped},
		"stopped":                              {box(sandbox.StatePaused, as(Stopped)), 0, Stopped},
		"paused by its client":                 {box(sandbox.StatePaused, as(Paused)), 8 * 24 * time.Hour, Paused},
		"archived":                             {box(sandbox.StatePaused, as(Archived)), 0, Archived},
		"archived once, and paused again":      {box(sandbox.StatePaused, stale), 0, Stopped},
		"paused by its auto-pause":             {box(sandbox.StatePaused, map[string]string{TagAutoPause: "on"}), 0, Paused},
		"stopped though it has an auto-pause":  {box(sandbox.StatePaused, as(Stopped, TagAutoPause, "on")), 0, Stopped},
		"stopped for a week":                   {box(sandbox.StatePaused, as(Stopped)), 7 * 24 * time.Hour, Archived},
		"stopped for an hour of two":           {box(sandbox.StatePaused, as(Stopped, TagArchive, "120")), time.Hour, Stopped},
		"stopped for two hours of two":         {box(sandbox.StatePaused, as(Stopped, TagArchive, "120")), 2 * time.Hour, Archived},
		"stopped for a week of the longest":    {box(sandbox.StatePaused, as(Stopped, TagArchive, "0")), 7 * 24 * time.Hour, Stopped},
		"stopped with a tag that is no number": {box(sandbox.StatePaused, as(Stopped, TagArchive, "x")), time.Hour, Stopped},
	} {
		if got := State(c.box, pausedAt.Add(c.after)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// The signature is what the product's clients compute.
func TestSign(t *testing.T) {
	got := Sign("key", "GET", "/a b", 1700000000)
	if want := "v1_S2c1ouMdk7R9Yyz17u0gfCs_jq0P56-8cwdfAgnmW2A"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A request without exactly one signature, path and time is refused before anything is
// looked up.
func TestOpenSignedRefuses(t *testing.T) {
	for _, target := range []string{
		"/files/download?path=/a&expires=0", "/files/download?path=/a&signature=v1_x", "/files/download?expires=0&signature=v1_x",
		"/files/download?path=/a&path=/b&expires=0&signature=v1_x", "/files/download?path=/a&expires=1&signature=v1_x",
		"/files/download?path=/a&expires=00&signature=v1_x", "/files/download?path=/a&expires=x&signature=v1_x", "/files?path=/a&expires=0&signature=v1_x",
	} {
		if _, err := OpenSigned(t.Context(), nil, "sbx-1", httptest.NewRequest("GET", target, nil)); sandbox.CodeOf(err) != sandbox.CodeUnauthenticated {
			t.Errorf("%s: %v", target, err)
		}
	}
}
