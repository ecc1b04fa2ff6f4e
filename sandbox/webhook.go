package sandbox

import "time"

// Webhook asks to be told when a job or background code has ended. The POST
// has a JSON body (see docs/jobs.md), the headers Webhook-Id, Webhook-Timestamp
// and, with a secret, Webhook-Signature, as of standardwebhooks.com.
type Webhook struct {
	// URL is http or https. Internal addresses of the host's network are refused
	// unless the server's configuration allows them.
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers,omitempty"`
	// Secret signs the body; it is never shown again.
	Secret SecretValue `json:"secret,omitzero"`
	// Format is what the POST looks like, that of docs/jobs.md if empty.
	Format WebhookFormat `json:"format,omitempty"`
}

// WebhookFormat is what the POST of a webhook looks like.
type WebhookFormat string

// The formats of webhooks.
const (
	WebhookStandard WebhookFormat = ""
	// WebhookHOPX is that of HOPX: a flat body with the ends of the streams, up
	// to 256 KiB each, and the headers X-HOPX-Timestamp and, with a secret,
	// X-HOPX-Signature, over timestamp and body.
	WebhookHOPX WebhookFormat = "hopx"
)

// Delivery is the attempt to tell a [Webhook], of a job or of an [Approval].
type Delivery struct {
	ID        string `json:"id"`
	SandboxID string `json:"sandbox_id"`
	// JobID is the job's whose end is told, or empty.
	JobID string `json:"job_id"`
	// ApprovalID is that of the question that is told, or empty.
	ApprovalID string `json:"approval_id,omitempty"`
	// URL is the webhook's; that of an approval is without path and query.
	URL string `json:"url"`
	// State is "waiting" for the job's end, "pending", "delivered" or
	// "failed".
	State    string `json:"state"`
	Attempts int    `json:"attempts"`
	// Status is the last answer's, 0 if there was none; Error says why.
	Status    int        `json:"status,omitempty"`
	Error     string     `json:"error,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
	NextAt    *time.Time `json:"next_at,omitempty"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
}
