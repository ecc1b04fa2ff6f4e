package webhooks

import (
	"context"
	"testing"
	"time"
)

func TestSemaphore(t *testing.T) {
	l := newSemaphore(3, 2)
	enter := func(key string, wait time.Duration) (func(), bool) {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		release, err := l.acquire(ctx, key)
		return release, err == nil
	}
	var releases []func()
	for i, tt := range []struct {
		key string
		ok  bool
	}{{"a", true}, {"a", true}, {"a", false}, {"b", true}, {"c", false}} {
		wait := 20 * time.Millisecond
		if tt.ok {
			wait = time.Minute
		}
		release, ok := enter(tt.key, wait)
		if ok != tt.ok {
			t.Fatalf("turn %d of %s: %v", i, tt.key, ok)
		}
		if ok {
			releases = append(releases, release)
		}
	}
	for _, release := range releases {
		release()
	}
	if len(l.byKey) != 0 || len(l.all) != 0 {
		t.Errorf("left: %v", l.byKey)
	}
}
