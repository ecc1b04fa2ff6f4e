package webhooks

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/webhook"
	"github.com/cove-sh/cove/sandbox"
)

// Receiver is a webhook that gets the questions that the network policies of a team's
// sandboxes ask.
type Receiver struct {
	Team string
	Hook sandbox.Webhook
}

// Question is the body of a webhook about a question, in the format of
// standardwebhooks.com.
type Question struct {
	// Type is "approval.asked".
	Type      string           `json:"type"`
	Timestamp time.Time        `json:"timestamp"`
	Data      sandbox.Approval `json:"data"`
}

const (
	// maxSandboxQuestions and maxTeamQuestions bound the waiting webhooks, including those
	// of jobs, beyond which there are none for questions: code in a sandbox can ask as
	// often as it likes, and must leave room for jobs.
	maxSandboxQuestions = sandbox.MaxSandboxWebhooks / 2
	maxTeamQuestions    = sandbox.MaxTeamWebhooks / 2
)

// CheckReceivers refuses receivers to which nothing can be sent.
func CheckReceivers(by webhook.Config, receivers []Receiver) error {
	sender := webhook.New(by)
	defer sender.Close()
	for i := range receivers {
		if err := sender.Check(&receivers[i].Hook); err != nil {
			return fmt.Errorf("webhooks.approvals of team %s: %w", receivers[i].Team, err)
		}
	}
	return nil
}

// Ask sends a new question to the receivers of its team. It returns at once.
func (q *Queue) Ask(team string, a *sandbox.Approval) {
	for i := range q.cfg.Receivers {
		r := &q.cfg.Receivers[i]
		if r.Team != team {
			continue
		}
		asked := *a
		q.gate.Go(func() {
			if err := q.ask(q.gate.Context(), r, &asked); err != nil && q.gate.Context().Err() == nil {
				q.log.Warn("tell of an approval by webhook", "approval", asked.ID, "sandbox", asked.SandboxID, "error", err)
			}
		})
	}
}

// ask records the delivery of a question to one receiver, and starts it.
func (q *Queue) ask(ctx context.Context, r *Receiver, a *sandbox.Approval) error {
	now := time.Now().UTC()
	body, err := json.Marshal(Question{Type: string(sandbox.EventApprovalAsked), Timestamp: now, Data: *a})
	if err != nil {
		return fmt.Errorf("encode an approval: %w", err)
	}
	d := store.Delivery{Team: r.Team, Body: body, Until: &a.ExpiresAt, Delivery: sandbox.Delivery{
		ID: questionDelivery(a.ID, r.Hook.URL), SandboxID: a.SandboxID, ApprovalID: a.ID, URL: r.Hook.URL,
		State: store.DeliveryPending, CreatedAt: now, NextAt: &now,
	}}
	// After a restart, the daemon gets open questions again.
	if _, err := q.store.Delivery(ctx, d.ID); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		return err
	}
	if err := q.record(ctx, &d, &r.Hook, maxSandboxQuestions, maxTeamQuestions); err != nil {
		return err
	}
	return q.deliver(ctx, &d)
}

// questionDelivery returns the id of the delivery of a question to a receiver. It is the
// same after a restart of the daemon, so that no question is sent twice.
func questionDelivery(approval, url string) string {
	sum := sha256.Sum256([]byte(approval + "\x00" + url))
	return ids.Delivery + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:26]
}
