package janitor

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// calls records the order of the calls of a janitor.
type calls struct {
	Records
	list  []string
	clock error
}

func (c *calls) KeepTime(context.Context) error { c.list = append(c.list, "clock"); return c.clock }

func (c *calls) DueSandboxes(context.Context, time.Time) ([]string, error) {
	c.list = append(c.list, "due")
	return []string{"sbx"}, nil
}

func (c *calls) Expire(context.Context, string) error { c.list = append(c.list, "expire"); return nil }
func (c *calls) Repair(context.Context) error         { return nil }

// TestClockIsKeptBeforeExpiry checks that the clock is kept before any sandbox expires, and that
// none expires if that fails.
func TestClockIsKeptBeforeExpiry(t *testing.T) {
	c := &calls{}
	j := New(Config{Records: c, Keeper: c})
	must(t, j.expire(t.Context()))
	if want := []string{"clock", "due", "expire"}; !slices.Equal(c.list, want) {
		t.Errorf("the calls are %v, want %v", c.list, want)
	}
	c.list, c.clock = nil, errors.New("no clock")
	if err := j.expire(t.Context()); !errors.Is(err, c.clock) || len(c.list) != 1 {
		t.Errorf("%v after %v", err, c.list)
	}
}
