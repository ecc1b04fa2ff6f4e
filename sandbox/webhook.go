package sandbox

import "time"

// Webhook is a URL that gets a POST when a job or background code has ended. The POST
// has a JSON body (see docs/jobs.md) and the headers Webhook-Id, Webhook-Timestamp
// and, with a secret, Webhook-Signature, as standardwebhooks.com defines them.
type Webhook struct {
	// URL is http or https. Internal addresses of the host's network are refused
	// unless the server's configuration allows them.
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers,omitempty"`
	// Secret signs the body; it is never shown again.
	Secret SecretValue `json:"secret,omitzero"`
	// Format is the format of the POST; empty is that of docs/jobs.md.
	Format WebhookFormat `json:"format,omitempty"`
}

// WebhookFormat is the format of a webhook's POST.
type WebhookFormat string

// The formats of webhooks.
const (
	WebhookStandard WebhookFormat = ""
	// WebhookHOPX is the format of HOPX: a flat body with the ends of the streams, up
	// to 256 KiB each, and the headers X-HOPX-Timestamp and, with a secret,
	// X-HOPX-Signature, over timestamp and body.
	WebhookHOPX WebhookFormat = "hopx"
)

// Delivery is the state of sending one POST to a [Webhook], about a job or an
// [Approval].
type Delivery struct {
	ID        string `json:"id"`
	SandboxID string `json:"sandbox_id"`
	// JobID is the job whose end is reported, or empty.
	JobID string `json:"job_id"`
	// ApprovalID is the question that is reported, or empty.
	ApprovalID string `json:"approval_id,omitempty"`
	// URL is the webhook's URL, for an approval without path and query.
	URL string `json:"url"`
	// State is "waiting" for the job's end, "pending", "delivered" or
	// "failed".
	State    string `json:"state"`
	Attempts int    `json:"attempts"`
	// Status is the HTTP status of the last answer, 0 if there was none; Error says
	// why.
	Status    int        `json:"status,omitempty"`
	Error     string     `json:"error,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
	NextAt    *time.Time `json:"next_at,omitempty"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
}
