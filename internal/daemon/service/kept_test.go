package service

import (
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// TestFallback checks from which checkpoint a failed sandbox continues, by what the engine
// knows of its instance and its checkpoints.
func TestFallback(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	older, newer := store.KeptState{Checkpoint: "older", At: at.Add(-time.Hour)}, store.KeptState{Checkpoint: "newer", At: at}
	both, one := store.Kept{Last: older, Next: newer}, store.Kept{Last: newer}
	set := func(ids ...string) map[string]bool {
		all := map[string]bool{}
		for _, id := range ids {
			all[id] = true
		}
		return all
	}
	for name, c := range map[string]struct {
		kept store.Kept
		fate fate
		want string // the checkpoint
		but  string // a part of the reason if there is none
	}{
		"on one machine":              {one, fate{}, "newer", ""},
		"of two":                      {both, fate{}, "newer", ""},
		"none":                        {store.Kept{}, fate{}, "", ""},
		"lost, and it has stopped":    {one, fate{lost: true, stopped: true}, "newer", ""},
		"lost, and it may run":        {one, fate{lost: true}, "", "because it may still run there"},
		"the newest is there only":    {both, fate{lost: true, stopped: true, pending: set("newer")}, "older", ""},
		"there only, and it is there": {both, fate{pending: set("newer")}, "newer", ""},
		"the only one is there only":  {one, fate{lost: true, stopped: true, pending: set("newer")}, "newer", ""},
		"the newest is gone":          {both, fate{gone: set("newer")}, "older", ""},
		"the only one is gone":        {one, fate{gone: set("newer")}, "", "its automatic checkpoint of 2026-01-02T03:04:05Z is lost, too"},
		"both are gone":               {both, fate{gone: set("newer", "older")}, "", "is lost, too"},
	} {
		r := &store.Record{Kept: c.kept}
		r.State, r.CheckpointIntervalSeconds = sandbox.StateRunning, 60
		back, but := fallback(r, &c.fate)
		if back.Checkpoint != c.want || !strings.Contains(but, c.but) || (c.but == "") != (but == "") {
			t.Errorf("%s: %q, %q", name, back.Checkpoint, but)
		}
	}
}
