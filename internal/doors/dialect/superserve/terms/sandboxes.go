// Package terms translates between Superserve's terms and Cove's, for the product's MCP
// tools and its REST interface.
package terms

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// NameTag is the tag for a sandbox name that the service does not accept: the product's
// names are arbitrary text and not unique. Clients do not see it.
const NameTag = ownPrefix + ".name"

// PortsTag is the tag of a sandbox whose ports are public, as in the product; it holds the
// id of the key that created the sandbox. A fork inherits it from its parent, where it has
// no effect. Clients do not see it.
const PortsTag = ownPrefix + ".ports"

// ownPrefix is the prefix of tags that clients can neither set nor see.
const ownPrefix = "_superserve"

// MaxName bounds the name of a sandbox, in characters.
const MaxName = 64

// ownTag reports whether the product reserves a tag.
func ownTag(key string) bool {
	key = strings.ToLower(key)
	return strings.HasPrefix(key, "superserve.") || strings.HasPrefix(key, ownPrefix)
}

// CheckTags refuses tags that clients may not set.
func CheckTags(tags map[string]string) error {
	for key := range tags {
		if ownTag(key) {
			return sandbox.Errorf(sandbox.CodeInvalid, "metadata keys beginning with superserve. or %s are reserved", ownPrefix)
		}
	}
	return nil
}

// CheckName refuses a name that is empty or too long.
func CheckName(name string) error {
	if n := len([]rune(name)); n == 0 || n > MaxName {
		return sandbox.Errorf(sandbox.CodeInvalid, "name must have 1 to %d characters (got %d)", MaxName, n)
	}
	return nil
}

// Tags returns the metadata of a sandbox that clients see. It is never nil.
func Tags(s *sandbox.Sandbox) map[string]string {
	tags := make(map[string]string)
	maps.Copy(tags, s.Metadata)
	maps.DeleteFunc(tags, func(key, _ string) bool { return strings.HasPrefix(key, ownPrefix+".") })
	return tags
}

// KeepTags returns the new metadata of a sandbox: the client's tags, and the existing ones
// that the client does not see.
func KeepTags(s *sandbox.Sandbox, tags map[string]string) map[string]string {
	all := make(map[string]string)
	maps.Copy(all, tags)
	for key, value := range s.Metadata {
		if strings.HasPrefix(key, ownPrefix+".") {
			all[key] = value
		}
	}
	return all
}

// NameOf returns the name of a sandbox.
func NameOf(s *sandbox.Sandbox) string { return cmp.Or(s.Metadata[NameTag], s.Name, s.ID) }

// statuses maps states to the product's names; other states have the same name as in Cove.
var statuses = map[sandbox.State]string{
	sandbox.StateCreating: "starting", sandbox.StateRunning: "active", sandbox.StateStopping: Deleted, sandbox.StateKilled: Deleted,
}

// Deleted is the status of a sandbox that no longer exists for clients.
const Deleted = "deleted"

// Status returns the product's name of a state.
func Status(s sandbox.State) string { return cmp.Or(statuses[s], string(s)) }

// atPause replaces a window of 0 seconds, which deletes a sandbox when it is paused: in the
// service, a paused lifetime of 0 means none. A window of one second is treated the same.
const atPause = 1

// PausedLifetime converts an auto-delete window to the service's terms.
func PausedLifetime(window int64) int64 { return max(atPause, window) }

// WindowOf converts a paused lifetime to an auto-delete window, or nil if there is none.
func WindowOf(lifetime int64) *int64 {
	switch lifetime {
	case 0:
		return nil
	case atPause:
		return new(int64)
	}
	return &lifetime
}

// Binding is a secret that is bound to a sandbox.
type Binding struct {
	EnvKey  string `json:"env_key"`
	Name    string `json:"secret_name"`
	Revoked bool   `json:"revoked"`
}

// BoundSecrets returns the secrets of a sandbox, by environment variable, and whether they
// still exist.
func BoundSecrets(ctx context.Context, svc sandbox.Service, names map[string]string) ([]Binding, error) {
	var out []Binding
	for _, env := range slices.Sorted(maps.Keys(names)) {
		_, err := svc.GetSecret(ctx, names[env])
		gone := sandbox.CodeOf(err) == sandbox.CodeNotFound
		if err != nil && !gone {
			return nil, err
		}
		out = append(out, Binding{EnvKey: env, Name: names[env], Revoked: gone})
	}
	return out, nil
}

// AuthType returns the product's name for how a secret is sent.
func AuthType(a *sandbox.SecretAuth) string {
	switch {
	case a.Type == "basic":
		return "basic"
	case a.Type != "header":
		return "custom"
	case strings.EqualFold(cmp.Or(a.Name, "Authorization"), "Authorization") && strings.EqualFold(strings.TrimSpace(a.Prefix), "Bearer"):
		return "bearer"
	}
	return "api-key"
}
