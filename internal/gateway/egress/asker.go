package egress

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/cove-sh/cove/sandbox"
)

const (
	// QuestionPrefix is the prefix of the ids of questions.
	QuestionPrefix = "apr-"
	// newQuestions is how many further questions a sandbox may raise per second, after a
	// burst of as many as can be open.
	newQuestions = 1
	// maxWaiting is how many connections may wait for all questions together.
	maxWaiting = 1024
)

// Subject is what a question is about, and all that an answer to it allows: a port of a
// name whose address the gateway looks up itself, or a port of one address. With a
// secret, it is about requests to that destination that carry the secret.
type Subject struct {
	// Protocol is "tcp" or "udp".
	Protocol string
	// Host is a name in lower case and ASCII, or empty if Address is valid.
	Host    string
	Address netip.Addr
	Port    uint16
	// Secret is the name of a secret; if empty, the subject is a connection.
	Secret string
}

// String returns the subject as "tcp example.com:443".
func (s Subject) String() string {
	host := s.Host
	if host == "" {
		host = s.Address.String()
	}
	return s.Protocol + " " + net.JoinHostPort(host, strconv.Itoa(int(s.Port)))
}

// Answer allows or refuses a subject. It applies only where the policy says to ask.
type Answer struct {
	Subject
	Allow bool
	// Until is when the answer ends; the zero time means never.
	Until time.Time
}

func (a *Answer) good() bool { return a.Until.IsZero() || time.Now().Before(a.Until) }

// Question is open until it is answered, no connection waits for the answer any more, or
// it expires.
type Question struct {
	ID string
	Subject
	Since, Expires time.Time
	// Waiting is how many connections wait for the answer.
	Waiting int
}

// ErrNoQuestion means that a question is not open, or no longer.
var ErrNoQuestion = errors.New("no such question is open")

// asker holds the open questions of a sandbox: one for each subject, however many
// connections wait for it. It is safe for concurrent use.
type asker struct {
	changed func() // nil if approvals are not possible
	more    *rate.Limiter

	mu      sync.Mutex
	open    map[Subject]*asking // guarded by mu
	waiting int                 // joined and not left; guarded by mu
}

// asking is an open question. Its Waiting is guarded by asker.mu, and so is refusal
// until done is closed.
type asking struct {
	Question
	timer *time.Timer
	done  chan struct{}
	// refusal is why the subject was refused; empty if it was allowed.
	refusal string
}

func newAsker(changed func()) *asker {
	return &asker{changed: changed, more: rate.NewLimiter(newQuestions, sandbox.MaxOpenApprovals), open: map[Subject]*asking{}}
}

// join adds a waiter to the question about a subject, and opens the question if needed.
// The caller must call leave. If refusal is not empty, it says why no question was
// opened.
func (k *asker) join(sub Subject, open time.Duration) (q *asking, refusal string) {
	if k.changed == nil {
		return nil, "approvals are not possible here"
	}
	defer k.changed()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.waiting >= maxWaiting {
		return nil, fmt.Sprintf("%d connections of the sandbox already wait for answers", k.waiting)
	}
	if q := k.open[sub]; q != nil {
		q.Waiting++
		k.waiting++
		return q, ""
	}
	if len(k.open) >= sandbox.MaxOpenApprovals || !k.more.Allow() {
		return nil, fmt.Sprintf("the sandbox has raised too many questions: %d are open", len(k.open))
	}
	now := time.Now().UTC()
	q = &asking{done: make(chan struct{}), Question: Question{ID: QuestionPrefix + strings.ToLower(rand.Text()), Subject: sub,
		Since: now, Expires: now.Add(open), Waiting: 1}}
	k.open[sub] = q
	k.waiting++
	q.timer = time.AfterFunc(open, func() { k.settle(q, "nobody answered in time") })
	return q, ""
}

// leave stops waiting. A question for which nothing waits is withdrawn.
func (k *asker) leave(q *asking) {
	if q == nil {
		return
	}
	k.mu.Lock()
	q.Waiting--
	k.waiting--
	if q.Waiting == 0 && k.open[q.Subject] == q {
		delete(k.open, q.Subject)
		q.timer.Stop()
	}
	k.mu.Unlock()
	k.changed()
}

// settle ends a question, and reports whether it was open.
func (k *asker) settle(q *asking, refusal string) bool {
	k.mu.Lock()
	open := k.open[q.Subject] == q
	if open {
		delete(k.open, q.Subject)
		q.timer.Stop()
		q.refusal = refusal
		close(q.done)
	}
	k.mu.Unlock()
	if open {
		k.changed()
	}
	return open
}

// Questions returns the open questions, the oldest first.
func (g *Gateway) Questions() []Question {
	k := g.asker
	k.mu.Lock()
	defer k.mu.Unlock()
	all := make([]Question, 0, len(k.open))
	for _, q := range k.open {
		all = append(all, q.Question)
	}
	slices.SortFunc(all, func(a, b Question) int {
		if c := a.Since.Compare(b.Since); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return all
}

// AnswerQuestion answers an open question for the connections that wait for it now, but
// not for later ones, which are covered by [Network].Answers. It returns [ErrNoQuestion]
// if the question is not open.
func (g *Gateway) AnswerQuestion(id string, allow bool) error {
	refusal := ""
	if !allow {
		refusal = "it was refused, by an answer or because too many questions are open"
	}
	k := g.asker
	k.mu.Lock()
	var found *asking
	for _, q := range k.open {
		if q.ID == id {
			found = q
		}
	}
	k.mu.Unlock()
	if found == nil || !k.settle(found, refusal) {
		return ErrNoQuestion
	}
	return nil
}

// subjectOf returns the subject of the question about an attempt. The subject is a name
// only where the gateway itself looks up the name's address: an address that the sandbox
// provides may belong to any host.
func subjectOf(d Decision, a Attempt) Subject {
	s := Subject{Protocol: a.Protocol, Port: a.Port}
	if a.resolved && !d.byAddr && len(a.Names) == 1 {
		s.Host = a.Names[0]
	} else {
		s.Address = a.Addr
	}
	return s
}

// judge judges an attempt of the flow with the answers in force. Where there is no
// answer, the decision says to ask.
func (f *flow) judge(s *state, a Attempt) Decision {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.judgeLocked(s, a)
}

// judgeLocked is judge for callers that hold f.mu.
//
// What was allowed once in the life of a flow stays allowed for the flow, until the
// policy or an answer refuses it.
func (f *flow) judgeLocked(s *state, a Attempt) Decision {
	d := s.policy.Judge(a)
	if !d.Ask {
		return d
	}
	sub := subjectOf(d, a)
	held, ok := s.answers[sub]
	switch {
	case ok && held.good() && !held.Allow:
		d.Ask, d.Reason = false, stillRefused
	case ok && held.good() || f.answered[sub]:
		d.Allow, d.Ask, d.Reason, d.addrOnly = true, false, "", sub.Host == ""
		f.answerLocked(sub)
	}
	return d
}

// answerLocked records that a subject was allowed. The caller must hold f.mu.
func (f *flow) answerLocked(sub Subject) {
	if f.answered == nil {
		f.answered = map[Subject]bool{}
	}
	f.answered[sub] = true
}

const stillRefused = "it was refused when the policy asked, and that answer still holds"

// admit calls [flow.consent] and then [flow.enter].
func (f *flow) admit(ctx context.Context, a Attempt) (*outbound, Decision) {
	if d := f.consent(ctx, a); !d.Allow {
		return nil, d
	}
	return f.enter(a)
}

// consent judges an attempt. If the policy says to ask, it waits for an answer. Nothing
// leaves the gateway for the attempt before it returns. The returned decision allows or
// refuses.
func (f *flow) consent(ctx context.Context, a Attempt) Decision {
	w := waiter{f: f}
	defer w.end()
	for {
		s := f.g.state.Load()
		d := f.judge(s, a)
		if !d.Ask {
			return d
		}
		sub, no := subjectOf(d, a), Decision{Match: d.Match, Rule: d.Rule}
		if sub.Host == "" && !sub.Address.IsValid() {
			no.Reason = "its destination name is not visible, so nobody can be asked"
			return no
		}
		if w.wait(ctx, s, sub, &no) {
			f.mu.Lock()
			f.answerLocked(sub)
			f.mu.Unlock()
		}
		if no.Reason != "" {
			return no
		}
	}
}

// waiter waits for answers until end is called.
type waiter struct {
	f    *flow
	q    *asking
	gone <-chan struct{}
	stop func() // stops watching gone
}

// wait waits for an answer about a subject, whose question it joins unless it already
// has, and reports whether the subject was allowed. If not, it completes no with the
// reason, or the policy or the answers have changed since s.
func (w *waiter) wait(ctx context.Context, s *state, sub Subject, no *Decision) (allowed bool) {
	if w.q == nil || w.q.Subject != sub {
		w.f.g.asker.leave(w.q)
		if w.q, no.Reason = w.f.g.asker.join(sub, s.askFor); w.q == nil {
			no.Match = sandbox.MatchLimit
			return false
		}
	}
	if w.stop == nil {
		w.gone, w.stop = w.f.watch()
	}
	select {
	case <-w.q.done:
		no.Reason = w.q.refusal
		return no.Reason == ""
	case <-s.over: // the policy or the answers have changed
		return false
	case <-w.gone:
	case <-ctx.Done():
	case <-w.f.ctx.Done():
	}
	no.Reason = "the sandbox gave up before the connection was allowed"
	return false
}

// end stops waiting.
func (w *waiter) end() {
	if w.stop != nil {
		w.stop()
	}
	w.f.g.asker.leave(w.q)
}
