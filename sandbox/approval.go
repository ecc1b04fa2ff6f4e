package sandbox

import (
	"cmp"
	"context"
	"net"
	"strconv"
	"time"
)

// ApprovalState is whether a question is open, or how it has ended.
type ApprovalState string

// The states. All but open are final.
const (
	ApprovalOpen    ApprovalState = "open"
	ApprovalAllowed ApprovalState = "allowed"
	ApprovalDenied  ApprovalState = "denied"
	// ApprovalExpired says that nobody has answered in time: the connections were refused.
	ApprovalExpired ApprovalState = "expired"
	// ApprovalWithdrawn says that nothing waits any more: the programs gave up, the
	// policy was changed, or the sandbox was paused or has ended.
	ApprovalWithdrawn ApprovalState = "withdrawn"
)

// ApprovalScope is what an answer holds for.
type ApprovalScope string

// The scopes. Once is the default.
const (
	// ApproveOnce is for the connections that wait when it is answered.
	ApproveOnce ApprovalScope = "once"
	// ApproveSandbox is until the sandbox ends or its policy is replaced.
	ApproveSandbox ApprovalScope = "sandbox"
	// ApproveDuration is for a time, and no longer than [ApproveSandbox].
	ApproveDuration ApprovalScope = "duration"
)

// ApprovalSubject is what a question is about, and all that an answer allows. It is what
// code in the sandbox wants: untrusted.
type ApprovalSubject struct {
	// Protocol is "tcp" or "udp".
	Protocol string `json:"protocol"`
	// Host is a name in lower case and ASCII (xn-- where it has other letters), whose
	// addresses the gateway looks up itself; or empty, and Address is the address that the
	// program chose.
	Host    string `json:"host,omitempty"`
	Address string `json:"address,omitempty"`
	Port    int    `json:"port"`
	// Secret is the name of a secret: the question is whether requests to there may carry
	// it. Empty is a question about a connection.
	Secret string `json:"secret,omitempty"`
}

// Target is where it goes, as "example.com:443".
func (s *ApprovalSubject) Target() string {
	return net.JoinHostPort(cmp.Or(s.Host, s.Address), strconv.Itoa(s.Port))
}

// Text is all of it in one line: "tcp example.com:443", or "secret github for tcp
// api.github.com:443".
func (s *ApprovalSubject) Text() string {
	text := s.Protocol + " " + s.Target()
	if s.Secret != "" {
		text = "secret " + s.Secret + " for " + text
	}
	return text
}

// Approval is a question that a sandbox's network policy asks: may it make this
// connection? Connections to one subject are one question; they wait, and are refused when
// it expires.
type Approval struct {
	ID        string `json:"id"`
	SandboxID string `json:"sandbox_id"`
	// SandboxName is the sandbox's name when it asked, or empty.
	SandboxName string `json:"sandbox_name,omitempty"`
	ApprovalSubject
	State     ApprovalState `json:"state"`
	AskedAt   time.Time     `json:"asked_at"`
	ExpiresAt time.Time     `json:"expires_at"`
	// Waiting is how many connections wait, or waited last.
	Waiting int `json:"waiting,omitempty"`
	// EndedAt is when it was answered or ended otherwise.
	EndedAt *time.Time `json:"ended_at,omitempty"`
	// Scope, AnsweredBy (the id of a key) and Until are of an answer; Until is of one for
	// a time.
	Scope      ApprovalScope `json:"scope,omitempty"`
	AnsweredBy string        `json:"answered_by,omitempty"`
	Until      *time.Time    `json:"until,omitempty"`
}

// ListApprovalsRequest selects questions. Zero fields select all.
type ListApprovalsRequest struct {
	// Sandbox selects those of one sandbox, by id or name.
	Sandbox string `json:"sandbox,omitempty" query:"sandbox" doc:"Only those of this sandbox, by id or name."`
	// State selects those of one state; empty is open ones.
	State ApprovalState `json:"state,omitempty" query:"state" doc:"Only open, allowed, denied, expired or withdrawn ones; absent is open."`
	// All selects those of all states.
	All bool `json:"all,omitempty" query:"all" doc:"Those of all states."`
	Page
}

// AnswerApprovalRequest answers a question.
type AnswerApprovalRequest struct {
	// Allow lets the connections go on, or refuses them.
	Allow bool `json:"allow"`
	// Scope is what the answer holds for; empty is [ApproveOnce].
	Scope ApprovalScope `json:"scope,omitempty"`
	// Seconds is how long an answer of scope duration holds, up to [MaxAnswerSeconds].
	Seconds int64 `json:"seconds,omitempty"`
}

// Approvals answers what network policies ask. Questions that are over are remembered
// until the server is restarted, the last [ApprovalsKept]; the audit record has them all.
type Approvals interface {
	// ListApprovals returns questions, newest first. Scope: sandboxes:read.
	ListApprovals(ctx context.Context, req ListApprovalsRequest) (*List[Approval], error)
	// GetApproval returns a question by its id. Scope: sandboxes:read.
	GetApproval(ctx context.Context, id string) (*Approval, error)
	// AnswerApproval answers an open question, for good: of two answers the first counts,
	// and the second is a conflict, as is an answer to a question that has ended. It
	// allows or refuses its subject and nothing else. Forks of the sandbox ask again.
	// Scope: sandboxes:write.
	AnswerApproval(ctx context.Context, id string, req AnswerApprovalRequest) (*Approval, error)
}
