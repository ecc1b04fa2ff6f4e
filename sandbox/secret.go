package sandbox

import (
	"encoding/json"
	"log/slog"
	"time"
)

// SecretValue is a value that must not be seen: it prints, logs and encodes as
// "[redacted]". Only [SecretValue.Reveal] returns it.
type SecretValue struct{ value string }

// NewSecretValue hides a value.
func NewSecretValue(value string) SecretValue { return SecretValue{value} }

const redacted = "[redacted]"

// Reveal returns the value.
func (s SecretValue) Reveal() string { return s.value }

// String returns "[redacted]".
func (SecretValue) String() string { return redacted }

// GoString returns "[redacted]".
func (SecretValue) GoString() string { return redacted }

// LogValue returns "[redacted]".
func (SecretValue) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalJSON encodes "[redacted]".
func (SecretValue) MarshalJSON() ([]byte, error) { return json.Marshal(redacted) }

// UnmarshalJSON takes a string.
func (s *SecretValue) UnmarshalJSON(data []byte) error { return json.Unmarshal(data, &s.value) }

// SecretAuth says how a secret travels in a request.
type SecretAuth struct {
	// Type is "header", "basic" or "query".
	Type string `json:"type"`
	// Name is the name of the header or query parameter; for a header it
	// defaults to Authorization.
	Name string `json:"name,omitempty"`
	// Prefix stands before the value in a header, such as "Bearer ".
	Prefix string `json:"prefix,omitempty"`
	// User is the user name of basic authentication. With the type header, the
	// value can then also travel as this user's password; if User is empty, it goes
	// into no basic authentication.
	User string `json:"user,omitempty"`
	// Body also replaces the placeholder in request bodies of up to
	// [MaxSecretBody].
	Body bool `json:"body,omitempty"`
}

// Secret is a credential of a team without its value, which nobody can read
// again. A sandbox that it is attached to has an environment variable with a
// placeholder. In requests to Hosts, and only there, the gateway replaces the
// placeholder with the value.
type Secret struct {
	ID   string `json:"id"`
	Team string `json:"team"`
	// Name is unique in the team: 1 to 63 of a-z, A-Z, 0-9, "_" and "-".
	Name string `json:"name"`
	// Provider is a preset of Hosts and Auth, or empty.
	Provider string `json:"provider,omitempty"`
	// Hosts are domains, or "*.domain", to which the value may go. [AnyHost] alone allows
	// every host to which a header rule of a network policy sends the value; such a
	// secret cannot be attached to an environment variable.
	Hosts []string   `json:"hosts"`
	Auth  SecretAuth `json:"auth"`
	// Metadata are the team's own notes, with the same limits as those of sandboxes.
	Metadata map[string]string `json:"metadata,omitempty"`
	// Version counts rotations, from 1.
	Version    int        `json:"version"`
	CreatedAt  time.Time  `json:"created_at"`
	RotatedAt  *time.Time `json:"rotated_at,omitempty"`
	LastUsedAt *time.Time `json:"last_used_at,omitempty"`
}

// AnyHost, as the only host of a secret, leaves the hosts to header rules.
const AnyHost = "*"

// CreateSecretRequest describes a secret. Hosts and Auth come from the
// provider if they are not given.
type CreateSecretRequest struct {
	Name     string      `json:"name"`
	Value    SecretValue `json:"value"`
	Provider string      `json:"provider,omitempty"`
	Hosts    []string    `json:"hosts,omitempty"`
	Auth     *SecretAuth `json:"auth,omitempty"`
	// Metadata is shown to all of the team, unlike the value.
	Metadata map[string]string `json:"metadata,omitempty"`
}

// RotateSecretRequest replaces a secret's value, at once in running sandboxes.
type RotateSecretRequest struct {
	Value SecretValue `json:"value"`
	// Metadata replaces the whole map; nil leaves it unchanged.
	Metadata map[string]string `json:"metadata,omitempty"`
}

// Resealed is the result of [Secrets.RotateSecretsKey].
type Resealed struct {
	// Values counts the secrets that are now sealed with the new key.
	Values int `json:"values"`
	// Lost are the names of secrets whose values no key opens. They are unchanged;
	// rotate them.
	Lost []string `json:"lost,omitempty"`
}

// Provider is a preset for the secrets of a well-known service.
type Provider struct {
	// Name is what [CreateSecretRequest].Provider takes, such as "anthropic".
	Name  string     `json:"name"`
	Title string     `json:"title"`
	Hosts []string   `json:"hosts"`
	Auth  SecretAuth `json:"auth"`
	// Env is the environment variable that the service's clients read.
	Env string `json:"env,omitempty"`
	// TokenShape is what a placeholder looks like, such as "sk-ant-api03-...".
	TokenShape string `json:"token_shape"`
}
