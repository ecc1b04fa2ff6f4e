package terms

import (
	"cmp"
	"slices"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// Rules are the part of a policy that the product has.
type Rules struct {
	AllowOut []string `json:"allow_out"`
	DenyOut  []string `json:"deny_out"`
}

// RulesOf returns the rules of a policy, or nil if there are none.
func RulesOf(p *sandbox.NetworkPolicy) *Rules {
	if p == nil || len(p.AllowOut)+len(p.DenyOut) == 0 {
		return nil
	}
	return &Rules{AllowOut: append([]string{}, p.AllowOut...), DenyOut: append([]string{}, p.DenyOut...)}
}

// Replace returns a policy with other rules. The parts that the product does not have are
// kept; if there is no policy, everything else is open.
func Replace(p *sandbox.NetworkPolicy, allow, deny []string) sandbox.NetworkPolicy {
	out := sandbox.NetworkPolicy{Preset: sandbox.NetworkOpen}
	if p != nil {
		out = *p
	}
	out.AllowOut, out.DenyOut = allow, deny
	return out
}

// Event is a row of the network log. Doors convert it to types with their own field names.
type Event struct {
	Kind     string
	ID       int64
	Time     string
	Host     string
	IP       string
	Port     int
	Verdict  string
	Match    string
	Sent     *int64
	Received *int64
	Method   string
	Path     string
	Status   int
	Upstream int
	Latency  *int64
	Secret   string
	Error    string
}

// Newest sorts events by time, newest first, and keeps only the last event of each
// connection.
func Newest(events []sandbox.NetworkEvent) []sandbox.NetworkEvent {
	slices.SortFunc(events, func(a, b sandbox.NetworkEvent) int { return cmp.Compare(b.ID, a.ID) })
	seen := make(map[int64]bool)
	return slices.DeleteFunc(events, func(e sandbox.NetworkEvent) bool {
		if e.Kind != sandbox.NetworkConnection || e.Connection == 0 {
			return false
		}
		again := seen[e.Connection]
		seen[e.Connection] = true
		return again
	})
}

// matches maps kinds of rules to the product's names; other kinds have the same name as in
// Cove.
var matches = map[sandbox.NetworkMatch]string{sandbox.MatchInternal: "internal-ip"}

// Stamp formats a time as the product does.
func Stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// RowOf returns the row of an event.
func RowOf(e *sandbox.NetworkEvent) Event {
	out := Event{Kind: string(e.Kind), ID: e.ID, Time: Stamp(e.Time), Host: e.Host}
	if e.Kind == sandbox.NetworkConnection {
		out.IP, out.Port = e.Address, e.Port
		out.Verdict, out.Match = string(e.Verdict), cmp.Or(matches[e.Match], string(e.Match))
		out.Sent, out.Received = &e.BytesOut, &e.BytesIn
		return out
	}
	out.Method, out.Path, out.Status, out.Latency, out.Secret = e.Method, e.Path, e.Status, &e.DurationMS, e.Secret
	switch {
	case e.Verdict == sandbox.NetworkAllowed:
		out.Upstream = e.Status
	case e.Verdict == sandbox.NetworkFailed:
		out.Error = "upstream_unreachable"
	case e.Match == sandbox.MatchSecret:
		out.Error = "credential_host_mismatch"
	default:
		out.Error = "egress_blocked"
	}
	return out
}
