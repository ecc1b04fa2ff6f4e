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
	// ApprovalExpired: nobody answered in time, so the connections were refused.
	ApprovalExpired ApprovalState = "expired"
	// ApprovalWithdrawn: no connection waits any more, because the programs gave up, the
	// policy was changed, or the sandbox was paused or has ended.
	ApprovalWithdrawn ApprovalState = "withdrawn"
)

// ApprovalScope says how long an answer holds.
type ApprovalScope string

// The scopes. Once is the default.
const (
	// ApproveOnce answers only the connections that wait at that time.
	ApproveOnce ApprovalScope = "once"
	// ApproveSandbox holds until the sandbox ends or its policy is replaced.
	ApproveSandbox ApprovalScope = "sandbox"
	// ApproveDuration holds for a given time, and no longer than [ApproveSandbox].
	ApproveDuration ApprovalScope = "duration"
)

// ApprovalSubject is what a question is about. An answer allows or refuses this and
// nothing else. Code in the sandbox chooses it, so it is untrusted.
type ApprovalSubject struct {
	// Protocol is "tcp" or "udp".
	Protocol string `json:"protocol"`
	// Host is a name in lower case and ASCII (xn-- for other letters); the gateway looks
	// up its addresses itself. If Host is empty, Address is the address that the program
	// chose.
	Host    string `json:"host,omitempty"`
	Address string `json:"address,omitempty"`
	Port    int    `json:"port"`
	// Secret is the name of a secret if the question is whether requests to this host may
	// carry it. It is empty if the question is about the connection.
	Secret string `json:"secret,omitempty"`
}

// Target returns the host or address with the port, as "example.com:443".
func (s *ApprovalSubject) Target() string {
	return net.JoinHostPort(cmp.Or(s.Host, s.Address), strconv.Itoa(s.Port))
}

// Text returns the subject as one line: "tcp example.com:443", or "secret github for tcp
// api.github.com:443".
func (s *ApprovalSubject) Text() string {
	text := s.Protocol + " " + s.Target()
	if s.Secret != "" {
		text = "secret " + s.Secret + " for " + text
	}
	return text
}

// Approval is a question that a sandbox's network policy asks: may the sandbox make this
// connection? All connections to one subject share one question. They wait for its answer,
// and are refused when it expires.
type Approval struct {
	ID        string `json:"id"`
	SandboxID string `json:"sandbox_id"`
	// SandboxName is the name that the sandbox had when the question was asked, or empty.
	SandboxName string `json:"sandbox_name,omitempty"`
	ApprovalSubject
	State     ApprovalState `json:"state"`
	AskedAt   time.Time     `json:"asked_at"`
	ExpiresAt time.Time     `json:"expires_at"`
	// Waiting is how many connections wait, or waited when the question ended.
	Waiting int `json:"waiting,omitempty"`
	// EndedAt is when the question was answered or ended otherwise.
	EndedAt *time.Time `json:"ended_at,omitempty"`
	// Scope, AnsweredBy (the id of a key) and Until describe the answer; Until is set if
	// the answer holds for a time.
	Scope      ApprovalScope `json:"scope,omitempty"`
	AnsweredBy string        `json:"answered_by,omitempty"`
	Until      *time.Time    `json:"until,omitempty"`
}

// ListApprovalsRequest selects questions. Zero fields select all.
type ListApprovalsRequest struct {
	// Sandbox selects the questions of one sandbox, by id or name.
	Sandbox string `json:"sandbox,omitempty" query:"sandbox" doc:"Only questions of this sandbox, by id or name."`
	// State selects questions in one state; empty selects open ones.
	State ApprovalState `json:"state,omitempty" query:"state" doc:"Only questions in this state: open, allowed, denied, expired or withdrawn; absent is open."`
	// All selects questions in all states.
	All bool `json:"all,omitempty" query:"all" doc:"Questions in all states."`
	Page
}

// AnswerApprovalRequest answers a question.
type AnswerApprovalRequest struct {
	// Allow lets the connections continue; false refuses them.
	Allow bool `json:"allow"`
	// Scope says how long the answer holds; empty is [ApproveOnce].
	Scope ApprovalScope `json:"scope,omitempty"`
	// Seconds is how long an answer of scope duration holds, up to [MaxAnswerSeconds].
	Seconds int64 `json:"seconds,omitempty"`
}

// Approvals answers what network policies ask. The server remembers the last
// [ApprovalsKept] ended questions until it is restarted; the audit record has them all.
type Approvals interface {
	// ListApprovals returns questions, newest first. Scope: sandboxes:read.
	ListApprovals(ctx context.Context, req ListApprovalsRequest) (*List[Approval], error)
	// GetApproval returns a question by its id. Scope: sandboxes:read.
	GetApproval(ctx context.Context, id string) (*Approval, error)
	// AnswerApproval answers an open question. The answer is final: a second answer is a
	// conflict, as is an answer to a question that has ended. It allows or refuses the
	// question's subject and nothing else. Forks of the sandbox ask again.
	// Scope: sandboxes:write.
	AnswerApproval(ctx context.Context, id string, req AnswerApprovalRequest) (*Approval, error)
}
