package service

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/sandbox"
)

func init() {
	notOnSandbox["GetApproval"] = func(ctx context.Context, s sandbox.Service) error {
		_, err := s.GetApproval(ctx, "apr-none")
		return err
	}
	notOnSandbox["AnswerApproval"] = func(ctx context.Context, s sandbox.Service) error {
		_, err := s.AnswerApproval(ctx, "apr-none", sandbox.AnswerApprovalRequest{Allow: true})
		return err
	}
	notOnSandbox["ListApprovals"] = func(ctx context.Context, s sandbox.Service) error {
		_, err := s.ListApprovals(ctx, sandbox.ListApprovalsRequest{})
		return err
	}
	scopeOf["GetApproval"], scopeOf["ListApprovals"] = sandbox.ScopeSandboxesRead, sandbox.ScopeSandboxesRead
	scopeOf["AnswerApproval"] = sandbox.ScopeSandboxesWrite
}

// asks returns the nth question of a cell.
func asks(n int) engine.Question {
	now := time.Now().UTC()
	return engine.Question{
		ID: fmt.Sprintf("apr-%026d", n), Subject: engine.Subject{Protocol: "tcp", Host: fmt.Sprintf("host%d.example", n), Port: 443},
		Since: now, Expires: now.Add(2 * time.Minute), Waiting: 1,
	}
}

// asking makes a sandbox whose policy asks.
func (w *harness) asking(name string) *sandbox.Sandbox {
	w.t.Helper()
	return w.create(sandbox.CreateRequest{Name: name, Network: &sandbox.NetworkPolicy{
		Preset: sandbox.NetworkNone, Rules: []sandbox.NetworkRule{{Action: sandbox.NetworkAsk, To: "*"}},
	}})
}

// await waits until the caller's events include n of a kind, and returns their approvals.
func (w *harness) await(kind sandbox.EventKind, n int) (all []sandbox.Approval) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(asRed(w.t), time.Minute)
	defer cancel()
	err := w.FollowEvents(ctx, sandbox.FollowEventsRequest{Kinds: []sandbox.EventKind{kind}, After: sandbox.EventsOldest}, func(e sandbox.Event) error {
		if e.Approval == nil {
			return nil
		}
		if all = append(all, *e.Approval); len(all) == n {
			cancel()
		}
		return nil
	})
	if len(all) != n {
		w.t.Fatalf("%d events of kind %s came, want %d; %v", len(all), kind, n, err)
	}
	return all
}

func (w *harness) approvalIDs(ctx context.Context, req sandbox.ListApprovalsRequest) (ids []string) {
	w.t.Helper()
	list, err := w.ListApprovals(ctx, req)
	must(w.t, err)
	for _, a := range list.Items {
		ids = append(ids, a.ID)
	}
	return ids
}

func TestApprovalOnce(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	x := w.asking("x")
	yes, no := asks(1), asks(2)
	no.Since = no.Since.Add(time.Second)
	w.engine.Ask(x.ID, yes, no)
	w.await(sandbox.EventApprovalAsked, 2)
	if got := w.approvalIDs(ctx, sandbox.ListApprovalsRequest{Sandbox: "x"}); !slices.Equal(got, []string{no.ID, yes.ID}) {
		t.Errorf("open are %q", got)
	}
	got, err := w.AnswerApproval(ctx, yes.ID, sandbox.AnswerApprovalRequest{Allow: true})
	must(t, err)
	want := sandbox.Approval{
		ID: yes.ID, SandboxID: x.ID, SandboxName: "x", ApprovalSubject: sandbox.ApprovalSubject{Protocol: "tcp", Host: "host1.example", Port: 443},
		State: sandbox.ApprovalAllowed, AskedAt: yes.Since, ExpiresAt: yes.Expires, Waiting: 1, EndedAt: got.EndedAt,
		Scope: sandbox.ApproveOnce, AnsweredBy: "key-red",
	}
	if diff := cmp.Diff(want, *got); diff != "" {
		t.Errorf("answered (-want +got):\n%s", diff)
	}
	_, err = w.AnswerApproval(ctx, no.ID, sandbox.AnswerApprovalRequest{})
	must(t, err)
	if diff := cmp.Diff(map[string]bool{yes.ID: true, no.ID: false}, w.state.Answers(x.ID)); diff != "" {
		t.Errorf("the gateway was told (-want +got):\n%s", diff)
	}
	if r := w.record(x.ID); len(r.Answers) > 0 {
		t.Errorf("once holds on: %+v", r.Answers)
	}
	w.await(sandbox.EventApprovalAnswered, 2)
	log := w.events(x.ID)
	for _, want := range []string{"system approval.ask", "key-red approval.answer"} {
		if n := len(slices.DeleteFunc(slices.Clone(log), func(s string) bool { return s != want })); n != 2 {
			t.Errorf("the audit record has %q %d times, want 2: %q", want, n, log)
		}
	}
}

func TestTwoAnswersAtOnce(t *testing.T) {
	w := newHarness(t)
	x := w.asking("x")
	w.engine.Ask(x.ID, asks(1))
	id := w.await(sandbox.EventApprovalAsked, 1)[0].ID
	inside, let := make(chan struct{}), make(chan struct{})
	w.state.Trap(memory.StepAnswer, memory.Before, func(context.Context) error {
		close(inside)
		<-let
		return nil
	})
	var first error
	var wg sync.WaitGroup
	wg.Go(func() { _, first = w.AnswerApproval(asRed(t), id, sandbox.AnswerApprovalRequest{Allow: true}) })
	<-inside
	_, err := w.AnswerApproval(asRed(t), id, sandbox.AnswerApprovalRequest{Allow: false, Scope: sandbox.ApproveSandbox})
	wantCode(t, err, sandbox.CodeConflict)
	close(let)
	wg.Wait()
	must(t, first)
	_, err = w.AnswerApproval(asRed(t), id, sandbox.AnswerApprovalRequest{})
	wantCode(t, err, sandbox.CodeConflict)
	if r := w.record(x.ID); len(r.Answers) > 0 || !w.state.Answers(x.ID)[id] {
		t.Errorf("the second answer counted: %+v", r.Answers)
	}
}

// An answer for the sandbox is in the record before the gateway has it. It survives a
// restart of the daemon and a pause, and ends with the policy. Forks and snapshots do not
// have it.
func TestApprovalForASandbox(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	x := w.asking("x")
	w.engine.Ask(x.ID, asks(1), asks(2))
	w.await(sandbox.EventApprovalAsked, 2)
	_, err := w.AnswerApproval(ctx, asks(1).ID, sandbox.AnswerApprovalRequest{Allow: true, Scope: sandbox.ApproveSandbox})
	must(t, err)
	got, err := w.AnswerApproval(ctx, asks(2).ID, sandbox.AnswerApprovalRequest{Scope: sandbox.ApproveDuration, Seconds: 60})
	must(t, err)
	want := []engine.Answer{{Subject: asks(1).Subject, Allow: true}, {Subject: asks(2).Subject, Until: *got.Until}}
	holds := func(when, id string, want []engine.Answer) {
		t.Helper()
		n, _ := w.state.Network(w.record(id).Instance)
		if diff := cmp.Diff(want, n.Answers); diff != "" {
			t.Errorf("%s, the gateway has (-want +got):\n%s", when, diff)
		}
	}
	holds("after the answers", x.ID, want)
	w.restart()
	w.pause("x")
	_, err = w.Resume(ctx, "x", sandbox.ResumeRequest{})
	must(t, err)
	holds("after a restart and a pause", x.ID, want)
	holds("in a fork", w.fork("x", sandbox.ForkRequest{Name: "child"})[0].ID, nil)
	_, err = w.CreateSnapshot(ctx, "x", sandbox.CreateSnapshotRequest{Name: "s"})
	must(t, err)
	holds("in a sandbox made of a snapshot", w.create(sandbox.CreateRequest{Name: "y", Snapshot: "s"}).ID, nil)
	_, err = w.SetNetwork(ctx, "x", *x.Network)
	must(t, err)
	holds("after the policy was replaced", x.ID, nil)
}

// A question about a secret is separate from the question about the connection, and so is
// its answer.
func TestApprovalOfASecret(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	_, err := w.CreateSecret(ctx, sandbox.CreateSecretRequest{Name: "github", Value: sandbox.NewSecretValue("value-of-a-secret"), Hosts: []string{"host1.example"}})
	must(t, err)
	x := w.create(sandbox.CreateRequest{Name: "x", Secrets: map[string]string{"TOKEN": "github"}, Network: &sandbox.NetworkPolicy{
		Rules: []sandbox.NetworkRule{{Action: sandbox.NetworkAsk, To: "secret:*"}},
	}})
	q := asks(1)
	q.Secret = "github"
	w.engine.Ask(x.ID, q)
	asked := w.await(sandbox.EventApprovalAsked, 1)[0]
	if want := (sandbox.ApprovalSubject{Protocol: "tcp", Host: "host1.example", Port: 443, Secret: "github"}); asked.ApprovalSubject != want {
		t.Errorf("asked about %+v", asked.ApprovalSubject)
	}
	_, err = w.AnswerApproval(ctx, q.ID, sandbox.AnswerApprovalRequest{Allow: true, Scope: sandbox.ApproveSandbox})
	must(t, err)
	n, _ := w.state.Network(w.record(x.ID).Instance)
	if diff := cmp.Diff([]engine.Answer{{Subject: q.Subject, Allow: true}}, n.Answers); diff != "" {
		t.Errorf("the gateway has (-want +got):\n%s", diff)
	}
}

func TestAnswersAreBounded(t *testing.T) {
	w := newHarness(t)
	x := w.asking("x")
	_, err := w.store.UpdateSandbox(t.Context(), x.ID, store.Change{Apply: func(r *store.Record) error {
		for i := range sandbox.MaxAnswers - 1 {
			r.Answers = append(r.Answers, store.Answer{ApprovalSubject: sandbox.ApprovalSubject{Protocol: "tcp", Address: "192.0.2.1", Port: i + 1}})
		}
		return nil
	}})
	must(t, err)
	for i := range 2 {
		w.engine.Ask(x.ID, asks(i))
		w.await(sandbox.EventApprovalAsked, i+1)
		_, err := w.AnswerApproval(asRed(t), asks(i).ID, sandbox.AnswerApprovalRequest{Allow: true, Scope: sandbox.ApproveSandbox})
		if i == 0 {
			must(t, err)
			continue
		}
		wantCode(t, err, sandbox.CodeQuotaExceeded)
	}
	if n := len(w.record(x.ID).Answers); n != sandbox.MaxAnswers {
		t.Errorf("%d answers hold", n)
	}
}

// An answer that cannot be applied changes nothing, and the question is open again.
func TestAnswerThatFails(t *testing.T) {
	for _, c := range []struct {
		scope sandbox.ApprovalScope
		step  memory.Step
	}{{sandbox.ApproveOnce, memory.StepAnswer}, {sandbox.ApproveSandbox, memory.StepSetNetwork}} {
		t.Run(string(c.scope), func(t *testing.T) {
			w := newHarness(t)
			x := w.asking("x")
			w.engine.Ask(x.ID, asks(1))
			w.await(sandbox.EventApprovalAsked, 1)
			req := sandbox.AnswerApprovalRequest{Allow: true, Scope: c.scope}
			w.state.Fail(c.step, memory.Before, context.DeadlineExceeded)
			if _, err := w.AnswerApproval(asRed(t), asks(1).ID, req); err == nil {
				t.Fatal("no error came")
			}
			if r := w.record(x.ID); len(r.Answers) > 0 {
				t.Errorf("it holds all the same: %+v", r.Answers)
			}
			_, err := w.AnswerApproval(asRed(t), asks(1).ID, req)
			must(t, err)
		})
	}
}

func TestApprovalThatEnds(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	x := w.asking("x")
	late, soon := asks(1), asks(2)
	soon.Expires = time.Now()
	w.engine.Ask(x.ID, late, soon)
	w.await(sandbox.EventApprovalAsked, 2)
	w.engine.Ask(x.ID)
	states := map[string]sandbox.ApprovalState{}
	for _, a := range w.await(sandbox.EventApprovalExpired, 2) {
		states[a.ID] = a.State
	}
	if diff := cmp.Diff(map[string]sandbox.ApprovalState{late.ID: sandbox.ApprovalWithdrawn, soon.ID: sandbox.ApprovalExpired}, states); diff != "" {
		t.Errorf("they ended as (-want +got):\n%s", diff)
	}
	_, err := w.AnswerApproval(ctx, late.ID, sandbox.AnswerApprovalRequest{Allow: true, Scope: sandbox.ApproveSandbox})
	wantCode(t, err, sandbox.CodeConflict)
	if r := w.record(x.ID); len(r.Answers) > 0 {
		t.Errorf("an answer that came too late holds: %+v", r.Answers)
	}
	if got := w.approvalIDs(ctx, sandbox.ListApprovalsRequest{All: true}); len(got) != 2 {
		t.Errorf("remembered are %q", got)
	}
}

// The daemon's death allows nothing: the next daemon gets the open questions from the
// cell, with the same ids.
func TestApprovalOutlivesTheDaemon(t *testing.T) {
	w := newHarness(t)
	x := w.asking("x")
	w.engine.Ask(x.ID, asks(1))
	w.await(sandbox.EventApprovalAsked, 1)
	w.restart()
	if got := w.approvalIDs(asRed(t), sandbox.ListApprovalsRequest{All: true}); len(got) > 0 || len(w.state.Answers(x.ID)) > 0 {
		t.Errorf("after the restart: %q, answered %v", got, w.state.Answers(x.ID))
	}
	w.engine.Ask(x.ID, asks(1))
	w.await(sandbox.EventApprovalAsked, 1)
	_, err := w.AnswerApproval(asRed(t), asks(1).ID, sandbox.AnswerApprovalRequest{Allow: true})
	must(t, err)
}

// A merge gives the winner's instance to the parent: its open questions are then the
// parent's, and the parent's answers count.
func TestApprovalThroughAMerge(t *testing.T) {
	w := newHarness(t)
	x := w.asking("x")
	child := w.fork("x", sandbox.ForkRequest{Name: "f"})[0]
	w.engine.Ask(w.record(child.ID).Instance, asks(1))
	w.await(sandbox.EventApprovalAsked, 1)
	_, err := w.Merge(asRed(t), "x", sandbox.MergeRequest{Winner: "f"})
	must(t, err)
	if got := w.approvalIDs(asRed(t), sandbox.ListApprovalsRequest{Sandbox: "x"}); !slices.Equal(got, []string{asks(1).ID}) {
		t.Errorf("the parent asks %q", got)
	}
	_, err = w.AnswerApproval(asRed(t), asks(1).ID, sandbox.AnswerApprovalRequest{Allow: true, Scope: sandbox.ApproveSandbox})
	must(t, err)
	if r := w.record(x.ID); len(r.Answers) != 1 {
		t.Errorf("the parent has the answers %+v", r.Answers)
	}
}

func TestApprovalsOfOthers(t *testing.T) {
	w := newHarness(t)
	x := w.asking("x")
	w.engine.Ask(x.ID, asks(1))
	w.await(sandbox.EventApprovalAsked, 1)
	elsewhere, _ := sandbox.CallerOf(asRed(t))
	elsewhere.Namespace = "elsewhere"
	for who, ctx := range map[string]context.Context{
		"another team": as(t.Context(), "blue", sandbox.Scopes()...), "another namespace": sandbox.WithCaller(t.Context(), elsewhere),
	} {
		if got := w.approvalIDs(ctx, sandbox.ListApprovalsRequest{All: true}); len(got) > 0 {
			t.Errorf("%s sees %q", who, got)
		}
		_, err := w.GetApproval(ctx, asks(1).ID)
		wantCode(t, err, sandbox.CodeNotFound)
		_, err = w.AnswerApproval(ctx, asks(1).ID, sandbox.AnswerApprovalRequest{Allow: true})
		wantCode(t, err, sandbox.CodeNotFound)
	}
	reader := as(t.Context(), "red", sandbox.ScopeSandboxesRead)
	if _, err := w.GetApproval(reader, asks(1).ID); err != nil {
		t.Errorf("a reader does not see it: %v", err)
	}
	_, err := w.AnswerApproval(reader, asks(1).ID, sandbox.AnswerApprovalRequest{Allow: true})
	wantCode(t, err, sandbox.CodeForbidden)
	// A compromised cell asks under the id of another sandbox's question.
	y := w.create(sandbox.CreateRequest{Name: "y"})
	w.engine.Ask(y.ID, asks(1), asks(9))
	w.await(sandbox.EventApprovalAsked, 2)
	if a, err := w.GetApproval(asRed(t), asks(1).ID); err != nil || a.SandboxID != x.ID {
		t.Errorf("the question of x is now %+v, %v", a, err)
	}
}

// A cell's questions are checked, since the code that it runs may control the cell.
func TestHostileQuestions(t *testing.T) {
	w := newHarness(t)
	x := w.asking("x")
	bad := func(change func(*engine.Question)) engine.Question {
		q := asks(7)
		change(&q)
		return q
	}
	w.engine.Ask(
		x.ID,
		bad(func(q *engine.Question) { q.ID = "apr-../../etc" }),
		bad(func(q *engine.Question) { q.ID = "" }),
		bad(func(q *engine.Question) { q.Host = "a\u202egro.elpmaxe" }),
		bad(func(q *engine.Question) { q.Host = "a.example\n" }),
		bad(func(q *engine.Question) { q.Host = strings.Repeat("a", 254) }),
		bad(func(q *engine.Question) { q.Host, q.Address = "", "not an address" }),
		bad(func(q *engine.Question) { q.Address = "192.0.2.1" }),
		bad(func(q *engine.Question) { q.Host, q.Address = "", "fe80::1%\x1b[2J" }),
		bad(func(q *engine.Question) { q.Port = 65536 }),
		bad(func(q *engine.Question) { q.Protocol = "sctp" }),
		bad(func(q *engine.Question) { q.Secret = "not\u202eemas" }),
		bad(func(q *engine.Question) { q.Secret = "of-another-sandbox" }),
		asks(1),
		func() engine.Question {
			q := asks(2)
			// JSON cannot encode a year with five digits: it would break the team's list.
			q.Since = time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("", -12*3600))
			q.Expires, q.Waiting = q.Since, -1<<40
			return q
		}(),
	)
	w.await(sandbox.EventApprovalAsked, 2)
	list, err := w.ListApprovals(asRed(t), sandbox.ListApprovalsRequest{})
	must(t, err)
	if len(list.Items) != 2 {
		t.Errorf("asked are %+v", list.Items)
	}
	for _, a := range list.Items {
		if _, err := json.Marshal(a); err != nil || a.Waiting < 0 || time.Until(a.AskedAt) > 0 || time.Until(a.ExpiresAt) > sandbox.MaxAskTimeoutSeconds*time.Second {
			t.Errorf("%s is asked at %v until %v by %d; %v", a.ID, a.AskedAt, a.ExpiresAt, a.Waiting, err)
		}
	}
}

// Attack: a cell withdraws its questions and asks others, without end.
func TestQuestionsWithoutEnd(t *testing.T) {
	w := newHarness(t)
	x := w.asking("x")
	for round := range 3 {
		var all []engine.Question
		for i := range sandbox.MaxOpenApprovals {
			all = append(all, asks(round*sandbox.MaxOpenApprovals+i))
		}
		w.engine.Ask(x.ID, all...)
		if round < 2 {
			w.await(sandbox.EventApprovalAsked, (round+1)*sandbox.MaxOpenApprovals)
		}
	}
	for end := time.Now().Add(time.Minute); len(w.state.Answers(x.ID)) < sandbox.MaxOpenApprovals/2; {
		if time.Now().After(end) {
			t.Fatal("a third time as many were not refused")
		}
		waitUnless(t.Context(), 5*time.Millisecond, nil)
	}
	if open := w.approvalIDs(asRed(t), sandbox.ListApprovalsRequest{}); len(open) > sandbox.MaxOpenApprovals/2 {
		t.Errorf("%d of a third time as many are open", len(open))
	}
}

// A team can have a thousand open questions. Further ones are refused, and another team
// can still ask.
func TestThousandQuestions(t *testing.T) {
	w := newHarness(t)
	n := 0
	var asking []string
	w.state.Fail(memory.StepAnswer, memory.Before, engine.ErrNoQuestion) // one has ended by itself
	for i := range sandbox.MaxOpenApprovalsTeam/sandbox.MaxOpenApprovals + 1 {
		x := w.asking(fmt.Sprintf("x%d", i))
		asking = append(asking, x.ID)
		var all []engine.Question
		for range sandbox.MaxOpenApprovals + 5 { // more than a cell of ours reports
			n++
			all = append(all, asks(n))
		}
		w.engine.Ask(x.ID, all...)
	}
	w.await(sandbox.EventApprovalAsked, sandbox.MaxOpenApprovalsTeam)
	end := time.Now().Add(time.Minute)
	for refused := 0; refused < sandbox.MaxOpenApprovals-1; {
		if time.Now().After(end) {
			t.Fatalf("%d of those that are too many were refused", refused)
		}
		waitUnless(t.Context(), 5*time.Millisecond, nil)
		refused = 0
		for _, id := range asking {
			refused += len(w.state.Answers(id))
		}
	}
	last := ""
	open := 0
	for {
		list, err := w.ListApprovals(asRed(t), sandbox.ListApprovalsRequest{Page: sandbox.Page{Limit: 100, Cursor: last}})
		must(t, err)
		open += len(list.Items)
		if last = list.NextCursor; last == "" {
			break
		}
	}
	if open != sandbox.MaxOpenApprovalsTeam {
		t.Errorf("%d questions are open", open)
	}
	blue := as(t.Context(), "blue")
	y, err := w.Create(blue, sandbox.CreateRequest{Name: "y"})
	must(t, err)
	w.engine.Ask(y.ID, asks(0))
	for w.approvalIDs(blue, sandbox.ListApprovalsRequest{}) == nil {
		waitUnless(t.Context(), 5*time.Millisecond, nil)
	}
}

func TestAnswersThatAreWrong(t *testing.T) {
	w := newHarness(t)
	x := w.asking("x")
	w.engine.Ask(x.ID, asks(1))
	w.await(sandbox.EventApprovalAsked, 1)
	for _, req := range []sandbox.AnswerApprovalRequest{
		{Scope: "forever"}, {Seconds: 5}, {Scope: sandbox.ApproveSandbox, Seconds: 5}, {Scope: sandbox.ApproveDuration},
		{Scope: sandbox.ApproveDuration, Seconds: -1}, {Scope: sandbox.ApproveDuration, Seconds: sandbox.MaxAnswerSeconds + 1},
	} {
		_, err := w.AnswerApproval(asRed(t), asks(1).ID, req)
		wantCode(t, err, sandbox.CodeInvalid)
	}
	_, err := w.ListApprovals(asRed(t), sandbox.ListApprovalsRequest{State: "closed"})
	wantCode(t, err, sandbox.CodeInvalid)
	_, err = w.ListApprovals(asRed(t), sandbox.ListApprovalsRequest{State: sandbox.ApprovalOpen, All: true})
	wantCode(t, err, sandbox.CodeInvalid)
}
