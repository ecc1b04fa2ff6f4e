package storetest

import (
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/limits"
)

func testRequests(t *testing.T, open Opener) {
	s, ctx := open(t), t.Context()
	request := func(team, key string, after time.Duration) limits.Request {
		return limits.Request{Team: team, Key: key, Hash: []byte{0, 1}, Run: "run-" + key, CreatedAt: epoch.Add(after)}
	}
	begin := func(r limits.Request, want *limits.Request) {
		t.Helper()
		got, err := s.BeginRequest(ctx, r, epoch.Add(-time.Hour))
		must(t, err)
		wantSame(t, got, want)
	}
	first := request("red", "a", 0)
	begin(first, nil)
	begin(request("blue", "a", time.Second), nil)
	again := request("red", "a", time.Minute)
	again.Hash, again.Run = []byte{2}, "another"
	begin(again, &first)
	answer := limits.Answer{Status: 201, ContentType: "application/json", Location: "/x", Body: []byte{0, 0xff}}
	must(t, s.AnswerRequest(ctx, "red", "a", answer))
	must(t, s.AnswerRequest(ctx, "red", "none", answer))
	must(t, s.Close())
	s = open(t)
	first.Answer, first.Run = &answer, ""
	begin(again, &first)

	begin(request("red", "b", time.Second), nil)
	must(t, s.ForgetRequest(ctx, "red", "b"))
	must(t, s.ForgetRequest(ctx, "red", "b"))
	begin(request("red", "b", 2*time.Second), nil)

	// What is old counts no more.
	got, err := s.BeginRequest(ctx, again, epoch.Add(time.Nanosecond))
	must(t, err)
	wantSame(t, got, (*limits.Request)(nil))
	begin(again, &again)

	trim := func(before time.Duration, keep, want int) {
		t.Helper()
		n, err := s.TrimRequests(ctx, epoch.Add(before), keep)
		must(t, err)
		wantSame(t, n, want)
	}
	for i, key := range []string{"c", "d", "e"} {
		begin(request("red", key, time.Duration(i)*time.Hour), nil)
	}
	trim(0, 100, 0)
	trim(2*time.Second, 100, 2) // blue's, and c
	trim(2*time.Second, 2, 2)   // b and a
	begin(request("red", "d", 0), new(request("red", "d", time.Hour)))
	begin(request("red", "e", 0), new(request("red", "e", 2*time.Hour)))
	begin(request("red", "a", 0), nil)
}
