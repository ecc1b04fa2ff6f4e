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

// Receiver is told of the questions that the network policies of a team's sandboxes ask.
type Receiver struct {
	Team string
	Hook sandbox.Webhook
}

// Question is what a webhook tells of a question, in the shape of standardwebhooks.com.
type Question struct {
	// Type is "approval.asked".
	Type      string           `json:"type"`
	Timestamp time.Time        `json:"timestamp"`
	Data      sandbox.Approval `json:"data"`
}

const (
	// maxSandboxQuestions and maxTeamQuestions bound the webhooks that wait when one more
	// tells of a question, those of jobs included: code in a sandbox can ask as often as it
	// likes, and must not take the room from jobs.
	maxSandboxQuestions = sandbox.MaxSandboxWebhooks / 2
	maxTeamQuestions    = sandbox.MaxTeamWebhooks / 2
)

// CheckReceivers refuses receivers to which nothing could be sent.
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

// Ask tells the receivers of a team of a question that was asked. It returns at once.
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

// ask records what one receiver is to be told, and sees to it.
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
	// A daemon that was started anew hears again of what is still asked.
	if _, err := q.store.Delivery(ctx, d.ID); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		return err
	}
	if err := q.record(ctx, &d, &r.Hook, maxSandboxQuestions, maxTeamQuestions); err != nil {
		return err
	}
	return q.deliver(ctx, &d)
}

// questionDelivery returns the id of the delivery of a question to a receiver: the same
// whichever daemon tells it, so that none is told twice.
func questionDelivery(approval, url string) string {
	sum := sha256.Sum256([]byte(approval + "\x00" + url))
	return ids.Delivery + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:26]
}
