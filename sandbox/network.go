package sandbox

import "time"

// NetworkPreset is what a policy begins with.
type NetworkPreset string

// The presets. Open is the default.
const (
	// NetworkOpen allows the public Internet.
	NetworkOpen NetworkPreset = "open"
	// NetworkPackages allows the usual package registries and code hosts, and
	// denies the rest.
	NetworkPackages NetworkPreset = "packages"
	// NetworkNone denies everything, including DNS.
	NetworkNone NetworkPreset = "none"
)

// NetworkAction is what a rule does.
type NetworkAction string

// The actions of rules.
const (
	NetworkAllow NetworkAction = "allow"
	NetworkDeny  NetworkAction = "deny"
	// NetworkAsk makes the connection wait until somebody has allowed it; see [Approval].
	// Nothing is sent before that, not even a DNS question for its name. The action is
	// for domains, addresses and ranges; a ping is refused. For a secret, the request that
	// would carry it waits.
	NetworkAsk NetworkAction = "ask"
)

// NetworkRule decides about the connections that it matches.
type NetworkRule struct {
	Action NetworkAction `json:"action"`
	// To is a domain ("example.com"), all domains below one
	// ("*.example.com", any depth, without example.com itself), an address, a
	// CIDR range, another sandbox of the team ("sandbox:NAME"), or "*". With the action
	// ask it can be the use of a secret ("secret:NAME", "secret:*" for all).
	To string `json:"to"`
	// Protocol is "tcp", "udp" or "icmp"; empty is all.
	Protocol string `json:"protocol,omitempty"`
	// Ports are ports ("443") and ranges ("8000-8999"); empty is all.
	Ports []string `json:"ports,omitempty"`
}

// NetworkPolicy decides what a sandbox can reach. The zero value is the preset
// open. A connection is judged in this order, and the first match decides:
// AllowOut, DenyOut, Rules, the preset.
//
// Internal addresses (private, loopback, link-local and shared ones, those of cloud
// metadata services, and the host's own; IPv6 likewise) are denied unless an allow
// rule in Rules names the address itself, or a range of internal addresses. A domain
// that resolves to an internal address is denied unless such a rule allows that
// address too.
type NetworkPolicy struct {
	Preset NetworkPreset `json:"preset,omitempty"`
	Rules  []NetworkRule `json:"rules,omitempty"`
	// AllowOut are domains, addresses and ranges that are allowed. AllowOut alone
	// blocks nothing.
	AllowOut []string `json:"allow_out,omitempty"`
	// DenyOut are addresses and ranges that are denied unless AllowOut has
	// them. With "0.0.0.0/0", only what AllowOut has can be reached.
	DenyOut []string `json:"deny_out,omitempty"`
	// Headers are set on HTTPS requests, at most [MaxHeaderRules] rules.
	Headers []HeaderRule `json:"headers,omitempty"`
	// Placeholders says what happens to a secret's placeholder on its way to a
	// host that the secret is not for: "forward", the default, sends the
	// placeholder as it is; "block" refuses the request.
	Placeholders PlaceholderAction `json:"placeholders,omitempty"`
	// AskTimeoutSeconds is how long a connection that a rule asks about waits for an
	// answer before it is refused; 0 is [DefaultAskTimeoutSeconds].
	AskTimeoutSeconds int `json:"ask_timeout_seconds,omitempty"`
	// MaxConnections bounds concurrent connections; 0 is [DefaultMaxConnections].
	MaxConnections int `json:"max_connections,omitempty"`
	// ConnectionsPerSecond bounds new connections and DNS questions; 0 is
	// [DefaultConnectionsPerSecond].
	ConnectionsPerSecond int `json:"connections_per_second,omitempty"`
	// BytesPerSecond bounds the rate of each direction; 0 is no bound.
	BytesPerSecond int64 `json:"bytes_per_second,omitempty"`
}

// HeaderRule sets headers of HTTPS requests to a host. It does not allow the requests;
// the rest of the policy decides that.
type HeaderRule struct {
	// To is a domain ("example.com"), or all domains below one ("*.example.com", any
	// depth, without example.com itself). If several rules match, only the most specific
	// one counts.
	To string `json:"to"`
	// Set are headers by name, at most [MaxHeaders], which replace headers of the same
	// name. "${secret:NAME}" in a value is the value of a secret of the team, which must
	// be for the host. Code in the sandbox sees neither the value nor a placeholder.
	Set map[string]string `json:"set"`
}

// PlaceholderAction says what happens to a placeholder on its way to a host that the
// secret is not for.
type PlaceholderAction string

// The actions. Forward is the default.
const (
	PlaceholderForward PlaceholderAction = "forward"
	PlaceholderBlock   PlaceholderAction = "block"
)

// NetworkKind says what a [NetworkEvent] is about.
type NetworkKind string

// The kinds of events.
const (
	// NetworkConnection is a TCP connection, a UDP flow or a ping.
	NetworkConnection NetworkKind = "connection"
	// NetworkDNS is a question to the sandbox's resolver.
	NetworkDNS NetworkKind = "dns"
	// NetworkRequest is an HTTP request that contained a placeholder, or that was
	// for another host than the name of its TLS connection.
	NetworkRequest NetworkKind = "request"
)

// NetworkVerdict is how an attempt ended.
type NetworkVerdict string

// The verdicts.
const (
	NetworkAllowed NetworkVerdict = "allowed"
	NetworkBlocked NetworkVerdict = "blocked"
	// NetworkFailed: the attempt was allowed, but the other side could not be reached.
	NetworkFailed NetworkVerdict = "failed"
)

// NetworkMatch is the kind of rule that decided.
type NetworkMatch string

// The kinds of rules.
const (
	MatchDomain   NetworkMatch = "domain"
	MatchCIDR     NetworkMatch = "cidr"
	MatchSandbox  NetworkMatch = "sandbox"
	MatchDefault  NetworkMatch = "default"
	MatchInternal NetworkMatch = "internal" // an internal address
	MatchProtocol NetworkMatch = "protocol" // what a policy by names cannot judge: QUIC, DNS to others, TLS without a name
	MatchLimit    NetworkMatch = "limit"
	MatchSecret   NetworkMatch = "secret"
)

// NetworkEvent is one attempt of a sandbox to reach something. An attempt is
// recorded when it is over; one that lasts is also recorded at its start, with
// Open set and the same Connection.
type NetworkEvent struct {
	// ID grows with time within a sandbox.
	ID         int64       `json:"id"`
	SandboxID  string      `json:"sandbox_id"`
	Time       time.Time   `json:"time"`
	Kind       NetworkKind `json:"kind"`
	Connection int64       `json:"connection,omitempty"`
	Open       bool        `json:"open,omitempty"`
	Protocol   string      `json:"protocol"`
	// Host is the name that the sandbox used, if known.
	Host    string         `json:"host,omitempty"`
	Address string         `json:"address,omitempty"`
	Port    int            `json:"port,omitempty"`
	Verdict NetworkVerdict `json:"verdict"`
	Match   NetworkMatch   `json:"match"`
	// Rule is the text of the rule that decided, such as "allow_out *.pypi.org".
	Rule string `json:"rule,omitempty"`
	// Reason says in words why the attempt was blocked or failed.
	Reason     string `json:"reason,omitempty"`
	BytesOut   int64  `json:"bytes_out,omitempty"`
	BytesIn    int64  `json:"bytes_in,omitempty"`
	DurationMS int64  `json:"duration_ms,omitempty"`
	// Question and Answers are set for a DNS event: the type of the question, such
	// as "A" or "AAAA", and the addresses.
	Question string   `json:"question,omitempty"`
	Answers  []string `json:"answers,omitempty"`
	// Method, Path (without the query), Status and Secret (its name) are set for a
	// request.
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
	Status int    `json:"status,omitempty"`
	Secret string `json:"secret,omitempty"`
}

// NetworkLogRequest selects events of one sandbox. Zero fields select all.
type NetworkLogRequest struct {
	Kind    NetworkKind    `json:"kind,omitempty" query:"kind"`
	Verdict NetworkVerdict `json:"verdict,omitempty" query:"verdict"`
	// Host is a domain, or "*.domain".
	Host string `json:"host,omitempty" query:"host"`
	// Since and Until bound the time.
	Since *time.Time `json:"since,omitempty" query:"since"`
	Until *time.Time `json:"until,omitempty" query:"until"`
	Page
}
