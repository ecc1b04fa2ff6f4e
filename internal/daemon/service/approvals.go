package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/approvals"
	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/events"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// ownerWait is how long an instance that asks may be missing from the records, and
	// ownerLook how often they are read: an instance can ask before it is recorded.
	ownerWait = 30 * time.Second
	ownerLook = 100 * time.Millisecond
)

// instanceAsks takes all open questions of an instance from the engine. It returns at
// once. For one instance, a newer list is handled after an older one.
func (s *Service) instanceAsks(instance string, open []engine.Question) {
	s.mu.Lock()
	_, busy := s.asking[instance]
	s.asking[instance] = open
	s.mu.Unlock()
	if !busy && !s.gate.Go(func() { s.handleQuestions(instance) }) {
		s.mu.Lock()
		delete(s.asking, instance)
		s.mu.Unlock()
	}
}

// handleQuestions handles the questions of an instance until there are no newer ones.
func (s *Service) handleQuestions(instance string) {
	for {
		s.mu.Lock()
		open := s.asking[instance]
		s.mu.Unlock()
		s.takeQuestions(instance, open)
		s.mu.Lock()
		if sameQuestions(s.asking[instance], open) {
			delete(s.asking, instance)
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
	}
}

func sameQuestions(a, b []engine.Question) bool { return slices.Equal(a, b) }

// takeQuestions gives the open questions of an instance to package approvals, as those of
// its sandbox. Questions of an instance without a sandbox, such as a build's, are refused,
// because nobody would see them.
func (s *Service) takeQuestions(instance string, open []engine.Question) {
	ctx := s.gate.Context()
	if len(open) == 0 {
		s.approvals.Report(approvals.Owner{Instance: instance}, nil)
		return
	}
	var excess []string
	r, err := s.ownerOf(ctx, instance)
	switch {
	case err == nil:
		excess = s.approvals.Report(approvals.Owner{Realm: call.RealmOf(&r), Instance: instance, SandboxID: r.ID, Name: r.Name}, ofOwnSecrets(&r, open))
	case sandbox.CodeOf(err) == sandbox.CodeNotFound:
		for _, q := range open {
			excess = append(excess, q.ID)
		}
	default:
		if ctx.Err() == nil {
			s.log.Error("find the sandbox that asks", "instance", instance, "error", err)
		}
		return // the connections are refused when their time is over
	}
	if len(excess) == 0 {
		return
	}
	asking, err := s.askingInstance(ctx, instance)
	for i := 0; i < len(excess) && err == nil; i++ {
		if err = asking.AnswerQuestion(ctx, excess[i], false); errors.Is(err, engine.ErrNoQuestion) {
			err = nil // this question is over; others may still be open
		}
	}
	if err != nil && !errors.Is(err, engine.ErrNoQuestion) && ctx.Err() == nil {
		s.log.Warn("refuse what nobody can be asked", "instance", instance, "error", err)
	}
}

// ofOwnSecrets returns the questions without those about secrets that the sandbox does not
// have. Cells are not trusted.
func ofOwnSecrets(r *store.Record, questions []engine.Question) []engine.Question {
	return slices.DeleteFunc(slices.Clone(questions), func(q engine.Question) bool {
		return q.Secret != "" && !slices.ContainsFunc(r.Bindings, func(b store.Binding) bool { return b.Secret == q.Secret })
	})
}

// ownerOf returns the record of an instance's sandbox. It waits for an instance that has
// just begun to run and may not be recorded yet.
func (s *Service) ownerOf(ctx context.Context, instance string) (store.Record, error) {
	for end := time.Now().Add(ownerWait); ; {
		r, err := s.cfg.Store.SandboxByInstance(ctx, instance)
		if sandbox.CodeOf(err) != sandbox.CodeNotFound || s.Builder.Owns(instance) || time.Now().After(end) {
			return r, err
		}
		waitUnless(ctx, ownerLook, nil)
		if ctx.Err() != nil {
			return r, ctx.Err()
		}
	}
}

func (s *Service) askingInstance(ctx context.Context, instance string) (engine.Asking, error) {
	i, err := s.cfg.Engine.Open(ctx, instance)
	if err != nil {
		if errors.Is(err, engine.ErrNotFound) {
			return nil, engine.ErrNoQuestion
		}
		return nil, err
	}
	asking, ok := i.(engine.Asking)
	if !ok {
		return nil, errNoGateway
	}
	return asking, nil
}

// tellApproval reports a question that was asked or has ended to those who follow events,
// to webhooks and to the audit record.
func (s *Service) tellApproval(o approvals.Owner, a sandbox.Approval) {
	kind, action := sandbox.EventApprovalExpired, "approval.expire"
	switch a.State {
	case sandbox.ApprovalOpen:
		kind, action = sandbox.EventApprovalAsked, "approval.ask"
		s.webhooks.Ask(o.Team, &a)
	case sandbox.ApprovalAllowed, sandbox.ApprovalDenied:
		kind, action = sandbox.EventApprovalAnswered, "" // the verb has a record
	case sandbox.ApprovalWithdrawn:
		action = "approval.withdraw"
	}
	s.events.Add(events.Entry{Team: o.Team, Namespace: o.Namespace, Event: sandbox.Event{Kind: kind, SandboxID: o.SandboxID, Approval: &a}})
	if action != "" {
		s.gate.System(&store.Record{Sandbox: sandbox.Sandbox{ID: o.SandboxID, Team: o.Team}}, action, a.Text()+" ("+a.ID+")")
	}
}

var approvalStates = []sandbox.ApprovalState{"", sandbox.ApprovalOpen, sandbox.ApprovalAllowed, sandbox.ApprovalDenied, sandbox.ApprovalExpired, sandbox.ApprovalWithdrawn}

// ListApprovals implements [sandbox.Approvals].
func (s *Service) ListApprovals(ctx context.Context, req sandbox.ListApprovalsRequest) (*sandbox.List[sandbox.Approval], error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.List[sandbox.Approval], error) {
		if !slices.Contains(approvalStates, req.State) {
			return nil, validate.Errorf("state %s is not valid; use one of %q", validate.Quote(string(req.State)), approvalStates[1:])
		}
		if req.All && req.State != "" {
			return nil, validate.Errorf("state and all are both given; use one of them")
		}
		id := ""
		if req.Sandbox != "" {
			r, err := c.Resolve(req.Sandbox)
			if err != nil {
				return nil, err
			}
			id = r.ID
		}
		state := req.State
		if state == "" {
			state = sandbox.ApprovalOpen
		}
		all := s.approvals.List(c.Realm(), func(a *sandbox.Approval) bool {
			return (id == "" || a.SandboxID == id) && (req.All || a.State == state)
		})
		return call.PageOf("approvals", all, req.Page, func(a *sandbox.Approval) store.Place {
			return store.Place{Number: -a.AskedAt.UnixNano(), Text: a.ID}
		})
	})
}

// GetApproval implements [sandbox.Approvals].
func (s *Service) GetApproval(ctx context.Context, id string) (*sandbox.Approval, error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.Approval, error) {
		a, err := s.approvals.Get(c.Realm(), id)
		if err != nil {
			return nil, err
		}
		return &a, nil
	})
}

// AnswerApproval implements [sandbox.Approvals].
func (s *Service) AnswerApproval(ctx context.Context, id string, req sandbox.AnswerApprovalRequest) (*sandbox.Approval, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "approval.answer"), func(c *call.Call) (*sandbox.Approval, error) {
		answer, err := answerOf(&req)
		if err != nil {
			return nil, err
		}
		answer.AnsweredBy = c.Caller.KeyID
		owner, asked, err := s.approvals.Claim(c.Realm(), id)
		if err != nil {
			return nil, err
		}
		c.SandboxID, c.Detail = owner.SandboxID, describeAnswer(&asked, answer)
		if err := s.apply(c.Ctx, owner, &asked, answer); err != nil {
			if _, serr := s.approvals.Settle(id, nil); serr != nil {
				err = serr
			}
			return nil, err
		}
		a, err := s.approvals.Settle(id, answer)
		if err != nil {
			return nil, err
		}
		return &a, nil
	})
}

// answerOf checks an answer and returns the fields that it sets in the question.
func answerOf(req *sandbox.AnswerApprovalRequest) (*sandbox.Approval, error) {
	a := &sandbox.Approval{State: sandbox.ApprovalDenied, Scope: req.Scope}
	if req.Allow {
		a.State = sandbox.ApprovalAllowed
	}
	switch req.Scope {
	case "":
		a.Scope = sandbox.ApproveOnce
	case sandbox.ApproveOnce, sandbox.ApproveSandbox:
	case sandbox.ApproveDuration:
		if err := validate.Range("seconds", req.Seconds, 1, sandbox.MaxAnswerSeconds); err != nil {
			return nil, err
		}
		until := time.Now().UTC().Add(time.Duration(req.Seconds) * time.Second)
		a.Until = &until
		return a, nil
	default:
		return nil, validate.Errorf("scope %s is not valid; use %q, %q or %q", validate.Quote(string(req.Scope)), sandbox.ApproveOnce, sandbox.ApproveSandbox, sandbox.ApproveDuration)
	}
	if req.Seconds != 0 {
		return nil, validate.Errorf("seconds works only with the scope %q; set that scope, or leave seconds out", sandbox.ApproveDuration)
	}
	return a, nil
}

// describeAnswer returns the audit record's text for an answer.
func describeAnswer(asked, answer *sandbox.Approval) string {
	verb := "deny"
	if answer.State == sandbox.ApprovalAllowed {
		verb = "allow"
	}
	held := string(answer.Scope)
	if answer.Until != nil {
		held = "until " + answer.Until.Format(time.RFC3339)
	}
	return fmt.Sprintf("%s %s, %s (%s)", verb, asked.Text(), held, asked.ID)
}

// apply puts an answer into effect. An answer for once goes only to the gateway. Others go
// into the record first and then, as part of the policy, to the gateway, which releases
// the connections that wait.
func (s *Service) apply(ctx context.Context, o approvals.Owner, asked, answer *sandbox.Approval) error {
	allow := answer.State == sandbox.ApprovalAllowed
	if answer.Scope == sandbox.ApproveOnce {
		// The answer counts even if the caller has gone.
		ctx, cancel := call.Teardown(ctx)
		defer cancel()
		asking, err := s.askingInstance(ctx, o.Instance)
		if err == nil {
			err = asking.AnswerQuestion(ctx, asked.ID, allow)
		}
		if errors.Is(err, engine.ErrNoQuestion) {
			s.approvals.Gone(asked.ID)
			return sandbox.Errorf(sandbox.CodeConflict, "approval %s has just ended: nothing waits for it any more", asked.ID)
		}
		if err != nil {
			return call.Unavailable(err, "sandbox %s is not responding; try again", o.SandboxID)
		}
		return nil
	}
	held := store.Answer{ID: asked.ID, ApprovalSubject: asked.ApprovalSubject, Allow: allow, By: answer.AnsweredBy, At: time.Now().UTC()}
	if answer.Until != nil {
		held.Until = *answer.Until
	}
	_, err := s.regate(ctx, o.SandboxID, func(r *store.Record) error {
		answers := slices.DeleteFunc(slices.Clone(r.Answers), func(a store.Answer) bool {
			return a.ApprovalSubject == held.ApprovalSubject || !a.Until.IsZero() && !a.Until.After(held.At)
		})
		if len(answers) >= sandbox.MaxAnswers {
			return sandbox.Errorf(sandbox.CodeQuotaExceeded, "the sandbox already has %d answers in effect; answer once, or replace its network policy to clear them", len(answers))
		}
		r.Answers = append(answers, held)
		return nil
	})
	return err
}
