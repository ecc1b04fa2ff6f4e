// Package approvals holds the questions that the network policies of sandboxes ask.
//
// The cells hold the connections that wait, and end them: a question is open for as long
// as its cell says so. The state here can be lost at any moment; a new daemon gets the
// open questions from their cells. Losing it allows nothing.
//
// Cells are not trusted: what they ask is checked and bounded, and no cell can touch
// another's questions.
package approvals

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// Owner is the sandbox that asks.
type Owner struct {
	call.Realm
	// Instance is the engine's id of the instance whose connections wait.
	Instance  string
	SandboxID string
	Name      string
}

// Book has the questions of a server. It is safe for concurrent use.
type Book struct {
	tell func(Owner, sandbox.Approval)

	// telling is held while a change is made and reported, so that the changes of one
	// question are reported in order.
	telling sync.Mutex

	mu    sync.Mutex
	open  map[string]*entry        // guarded by mu; by id
	ended []*entry                 // guarded by mu; oldest first
	teams map[string]int           // guarded by mu; how many are open, by team
	more  map[string]*rate.Limiter // guarded by mu; limits new questions, by instance
}

// entry is a question. It is guarded by Book.mu.
type entry struct {
	Owner
	sandbox.Approval
	// claimed says that an answer is being applied.
	claimed bool
	// gone says that the cell no longer asks.
	gone bool
}

// New returns a book without questions. It calls tell with each question when it is asked
// and when it has ended; tell must not call the book.
func New(tell func(Owner, sandbox.Approval)) *Book {
	return &Book{tell: tell, open: map[string]*entry{}, teams: map[string]int{}, more: map[string]*rate.Limiter{}}
}

var (
	validID     = lazyregexp.New(`^apr-[a-z0-9]{26}$`)
	validSecret = lazyregexp.New(`^[a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?$`)
	validHost   = lazyregexp.New(`^[a-z0-9_.-]{1,253}$`)
)

// valid reports whether a question is one that Cove's own cells could ask.
func valid(q *engine.Question) bool {
	if !validID.MatchString(q.ID) || q.Protocol != "tcp" && q.Protocol != "udp" || q.Port < 1 || q.Port > 65535 || q.Secret != "" && !validSecret.MatchString(q.Secret) {
		return false
	}
	if q.Host != "" {
		return validHost.MatchString(q.Host) && q.Address == ""
	}
	addr, err := netip.ParseAddr(q.Address)
	return err == nil && addr.Zone() == "" // which may be any text
}

// maxOpen is the longest time for which a policy lets a question be open.
const maxOpen = sandbox.MaxAskTimeoutSeconds * time.Second

// bounded returns a question with its times and number limited to what is possible for an
// open question.
func bounded(q engine.Question) engine.Question {
	now := time.Now()
	within := func(t, first, last time.Time) time.Time {
		switch {
		case t.Before(first):
			return first
		case t.After(last):
			return last
		}
		return t
	}
	q.Since = within(q.Since, now.Add(-maxOpen), now).UTC()
	q.Expires = within(q.Expires, q.Since, q.Since.Add(maxOpen)).UTC()
	q.Waiting = min(max(q.Waiting, 0), sandbox.MaxMaxConnections)
	return q
}

// Report replaces the open questions of an instance. It returns the ids of questions for
// which there is no room, and which the caller must refuse.
func (b *Book) Report(o Owner, questions []engine.Question) (excess []string) {
	b.telling.Lock()
	defer b.telling.Unlock()
	var told []*entry
	b.mu.Lock()
	questions = questions[:min(len(questions), sandbox.MaxOpenApprovals)]
	asked := map[string]bool{}
	for i := range questions {
		if !valid(&questions[i]) {
			continue
		}
		q := bounded(questions[i])
		e := b.open[q.ID]
		switch {
		case e != nil && e.Instance != o.Instance:
			continue // another cell's
		case e != nil:
			e.Waiting = q.Waiting
			b.move(e, o)
		case b.known(q.ID):
			continue // it has ended here; the cell does not know yet
		case len(b.open) >= sandbox.MaxOpenApprovalsServer || b.teams[o.Team] >= sandbox.MaxOpenApprovalsTeam || !b.another(o.Instance):
			excess = append(excess, q.ID)
			continue
		default:
			e = b.add(o, &q)
			told = append(told, e)
		}
		asked[q.ID] = true
	}
	told = append(told, b.lapse(o.Instance, asked)...)
	all := snapshots(told)
	b.mu.Unlock()
	b.tellOf(told, all)
	return excess
}

// another reports whether an instance may ask a new question now: twice as often as
// Cove's own cells do. Each question makes an event and an audit record, however short it
// is open. It requires mu.
func (b *Book) another(instance string) bool {
	l := b.more[instance]
	if l == nil {
		if len(b.more) >= sandbox.MaxOpenApprovalsServer {
			maps.DeleteFunc(b.more, func(_ string, l *rate.Limiter) bool { return l.Tokens() >= float64(l.Burst()) })
		}
		l = rate.NewLimiter(2, 2*sandbox.MaxOpenApprovals)
		b.more[instance] = l
	}
	return l.Allow()
}

// add requires mu.
func (b *Book) add(o Owner, q *engine.Question) *entry {
	e := &entry{Owner: o, Approval: sandbox.Approval{
		ID: q.ID, SandboxID: o.SandboxID, SandboxName: o.Name,
		ApprovalSubject: sandbox.ApprovalSubject{Protocol: q.Protocol, Host: q.Host, Address: q.Address, Port: q.Port, Secret: q.Secret},
		State:           sandbox.ApprovalOpen, AskedAt: q.Since, ExpiresAt: q.Expires, Waiting: q.Waiting,
	}}
	b.open[q.ID] = e
	b.teams[o.Team]++
	return e
}

// Move gives the open questions of an instance to the sandbox that it now belongs to.
func (b *Book) Move(o Owner) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.open {
		if e.Instance == o.Instance {
			b.move(e, o)
		}
	}
}

// move gives a question to the sandbox that its instance now belongs to. It requires mu.
func (b *Book) move(e *entry, o Owner) {
	b.leaveTeam(e)
	e.Owner, e.Approval.SandboxID, e.SandboxName = o, o.SandboxID, o.Name
	b.teams[o.Team]++
}

// leaveTeam requires mu.
func (b *Book) leaveTeam(e *entry) {
	if b.teams[e.Team]--; b.teams[e.Team] == 0 {
		delete(b.teams, e.Team)
	}
}

// lapse ends the questions that an instance no longer asks, except those that are being
// answered. It requires mu.
func (b *Book) lapse(instance string, asked map[string]bool) (ended []*entry) {
	for id, e := range b.open {
		if e.Instance != instance || asked[id] {
			continue
		}
		if e.gone = true; !e.claimed {
			b.end(e, lapsed(e))
			ended = append(ended, e)
		}
	}
	slices.SortFunc(ended, func(x, y *entry) int { return x.AskedAt.Compare(y.AskedAt) })
	return ended
}

// expiryGrace is how long before its expiry a question that is gone already counts as
// expired, because two processes read the clock.
const expiryGrace = 100 * time.Millisecond

// lapsed returns the final state of a question that nobody has answered.
func lapsed(e *entry) sandbox.ApprovalState {
	if time.Until(e.ExpiresAt) <= expiryGrace {
		return sandbox.ApprovalExpired
	}
	return sandbox.ApprovalWithdrawn
}

// end requires mu.
func (b *Book) end(e *entry, state sandbox.ApprovalState) {
	now := time.Now().UTC()
	e.State, e.EndedAt = state, &now
	delete(b.open, e.ID)
	b.leaveTeam(e)
	if len(b.ended) >= 2*sandbox.ApprovalsKept {
		b.ended = slices.Clone(b.ended[len(b.ended)-sandbox.ApprovalsKept+1:])
	}
	b.ended = append(b.ended, e)
}

// known reports whether a question has ended. It requires mu.
func (b *Book) known(id string) bool {
	return slices.ContainsFunc(b.ended, func(e *entry) bool { return e.ID == id })
}

func snapshots(entries []*entry) []sandbox.Approval {
	all := make([]sandbox.Approval, len(entries))
	for i, e := range entries {
		all[i] = e.Approval
	}
	return all
}

// tellOf requires telling.
func (b *Book) tellOf(entries []*entry, all []sandbox.Approval) {
	for i, e := range entries {
		b.tell(e.Owner, all[i])
	}
}

// List returns the questions of a realm that wanted selects, in no order.
func (b *Book) List(in call.Realm, wanted func(*sandbox.Approval) bool) []sandbox.Approval {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []sandbox.Approval
	add := func(e *entry) {
		if in.Has(e.Team, e.Namespace) && wanted(&e.Approval) {
			all = append(all, e.Approval)
		}
	}
	for _, e := range b.open {
		add(e)
	}
	for _, e := range b.ended[max(0, len(b.ended)-sandbox.ApprovalsKept):] {
		add(e)
	}
	return all
}

// Get returns a question of a realm.
func (b *Book) Get(in call.Realm, id string) (sandbox.Approval, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, err := b.find(in, id)
	if err != nil {
		return sandbox.Approval{}, err
	}
	return e.Approval, nil
}

// find requires mu.
func (b *Book) find(in call.Realm, id string) (*entry, error) {
	e := b.open[id]
	if e == nil {
		if i := slices.IndexFunc(b.ended, func(e *entry) bool { return e.ID == id }); i >= 0 {
			e = b.ended[i]
		}
	}
	if e == nil || !in.Has(e.Team, e.Namespace) {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no approval %s; list the approvals to see which exist", validate.Quote(id))
	}
	return e, nil
}

// Claim takes an open question, so that nobody else can answer it until Settle.
func (b *Book) Claim(in call.Realm, id string) (Owner, sandbox.Approval, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, err := b.find(in, id)
	switch {
	case err != nil:
		return Owner{}, sandbox.Approval{}, err
	case e.State != sandbox.ApprovalOpen:
		return Owner{}, sandbox.Approval{}, over(&e.Approval)
	case e.claimed:
		return Owner{}, sandbox.Approval{}, sandbox.Errorf(sandbox.CodeConflict, "somebody else is answering approval %s right now; look at it in a moment", id)
	}
	e.claimed = true
	return e.Owner, e.Approval, nil
}

// over returns the error that says why a question cannot be answered.
func over(a *sandbox.Approval) error {
	how := "has " + string(a.State)
	switch a.State {
	case sandbox.ApprovalAllowed, sandbox.ApprovalDenied:
		how = "was answered already: " + string(a.State) + " by " + a.AnsweredBy
	case sandbox.ApprovalWithdrawn:
		how = "was withdrawn: nothing waits for it any more"
	}
	return sandbox.Errorf(sandbox.CodeConflict, "approval %s %s; if the sandbox tries again, it asks again", a.ID, how)
}

// Settle ends the claim of a question. With an answer, the question is answered; with
// nil, it is open again if the cell still asks.
func (b *Book) Settle(id string, answer *sandbox.Approval) (sandbox.Approval, error) {
	b.telling.Lock()
	defer b.telling.Unlock()
	b.mu.Lock()
	e := b.open[id]
	if e == nil { // a claimed question stays open
		b.mu.Unlock()
		return sandbox.Approval{}, sandbox.Errorf(sandbox.CodeInternal, "approval %s was not claimed", id)
	}
	e.claimed = false
	var told []*entry
	switch {
	case answer != nil:
		e.Scope, e.AnsweredBy, e.Until = answer.Scope, answer.AnsweredBy, answer.Until
		b.end(e, answer.State)
		told = append(told, e)
	case e.gone:
		b.end(e, lapsed(e))
		told = append(told, e)
	}
	now := e.Approval
	all := snapshots(told)
	b.mu.Unlock()
	b.tellOf(told, all)
	if answer == nil && now.State != sandbox.ApprovalOpen {
		return now, over(&now)
	}
	return now, nil
}

// Gone notes that the cell of a claimed question no longer asks.
func (b *Book) Gone(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.open[id]; e != nil {
		e.gone = true
	}
}
