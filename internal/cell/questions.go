package cell

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/gateway/egress"
)

// notifyPause is how long the cell collects changes of the open questions before it
// notifies watchers again: code in the sandbox decides how often they change.
const notifyPause = 50 * time.Millisecond

// questionsChanged records that the open questions have changed. It never blocks.
func (g *gateway) questionsChanged() {
	select {
	case g.asked <- struct{}{}:
	default:
	}
}

// notifyOfQuestions calls notify after changes of the open questions, until ctx ends.
// Changes in quick succession share one call.
func (g *gateway) notifyOfQuestions(ctx context.Context, notify func()) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
		select {
		case <-g.asked:
		case <-ctx.Done():
			return
		}
		notify()
		pause.Reset(notifyPause)
	}
}

// questions returns the open questions.
func (g *gateway) questions() []engine.Question {
	open := g.eg.Questions()
	all := make([]engine.Question, 0, len(open))
	for _, q := range open {
		told := engine.Question{ID: q.ID, Subject: engine.Subject{Protocol: q.Protocol, Host: q.Host, Port: int(q.Port), Secret: q.Secret},
			Since: q.Since, Expires: q.Expires, Waiting: q.Waiting}
		if q.Address.IsValid() {
			told.Address = q.Address.String()
		}
		all = append(all, told)
	}
	return all
}

// answersOf converts answers to the gateway's form. It leaves out invalid ones, which
// must not allow anything.
func answersOf(all []engine.Answer) []egress.Answer {
	var held []egress.Answer
	for _, a := range all {
		h := egress.Answer{Subject: egress.Subject{Protocol: a.Protocol, Host: a.Host, Port: uint16(a.Port), Secret: a.Secret}, Allow: a.Allow, Until: a.Until}
		if a.Address != "" {
			addr, err := netip.ParseAddr(a.Address)
			if err != nil {
				continue
			}
			h.Address = addr
		}
		held = append(held, h)
	}
	return held
}

func (c *cell) answerQuestion(_ context.Context, req *answerRequest) (*empty, error) {
	err := c.gate.eg.AnswerQuestion(req.ID, req.Allow)
	if errors.Is(err, egress.ErrNoQuestion) {
		return nil, connect.NewError(connect.CodeNotFound, err)
	}
	return &empty{}, err
}
