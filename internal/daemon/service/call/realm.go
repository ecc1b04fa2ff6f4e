package call

import (
	"cmp"
	"context"

	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// LocalKeyID is the key id of the user who runs the daemon. Ids of real keys differ.
var LocalKeyID = sandbox.LocalCaller().KeyID

// Realm is what a caller can see: a namespace of a team, or for "" the whole team.
// Volumes, secrets and templates belong to no namespace.
type Realm struct{ Team, Namespace string }

// RealmOf returns the realm in which a sandbox finds others by name.
func RealmOf(r *store.Record) Realm { return Realm{r.Team, r.Namespace} }

// Has reports whether a sandbox or snapshot is in the realm.
func (m Realm) Has(team, namespace string) bool {
	return m.Team == team && (m.Namespace == "" || m.Namespace == namespace)
}

// Realm returns what the caller can see.
func (c *Call) Realm() Realm { return Realm{c.Caller.Team, c.Caller.Namespace} }

// anyNamespace selects all namespaces that the caller can see.
const anyNamespace = "*"

// Namespace returns the namespace that a request selects. A caller that is in a
// namespace gets an error for any other, whether it exists or not.
func (c *Call) Namespace(asked string) (string, error) {
	own := c.Caller.Namespace
	if asked == anyNamespace {
		asked = ""
	}
	if asked != "" {
		if err := validate.Name("namespace", asked); err != nil {
			return "", err
		}
	}
	if own != "" && asked != "" && asked != own {
		return "", sandbox.Errorf(sandbox.CodeForbidden, "you work in the namespace %q, but the request names %q; leave the namespace out of the request, or connect with that namespace", own, asked)
	}
	return cmp.Or(own, asked), nil
}

// NeedTeam returns an error if the caller is in a namespace, for verbs that concern the
// whole team.
func (c *Call) NeedTeam(what string) error {
	if c.Caller.Namespace == "" {
		return nil
	}
	return sandbox.Errorf(sandbox.CodeForbidden, "%s belongs to the whole team, but you work in the namespace %q; send the request without a namespace", what, c.Caller.Namespace)
}

// Resolve returns the record of the sandbox of a realm with this id or name, in
// any state.
func (g *Gate) Resolve(ctx context.Context, in Realm, ref string) (store.Record, error) {
	if ref == "" {
		return store.Record{}, sandbox.Errorf(sandbox.CodeInvalid, "no sandbox is named; set its id or name")
	}
	if len(ref) > sandbox.MaxNameLength || validate.Text("sandbox", ref) != nil {
		return store.Record{}, NoSandbox(ref)
	}
	var r store.Record
	var err error
	if ids.IsSandbox(ref) {
		r, err = g.cfg.Store.Sandbox(ctx, ref)
	} else {
		r, err = g.cfg.Store.SandboxByName(ctx, in.Team, in.Namespace, ref)
	}
	if sandbox.CodeOf(err) == sandbox.CodeNotFound || err == nil && !in.Has(r.Team, r.Namespace) {
		return store.Record{}, NoSandbox(ref)
	}
	return r, err
}

// snapshot returns the record of the snapshot of a realm with this id or name.
func (g *Gate) snapshot(ctx context.Context, in Realm, ref string) (store.SnapshotRecord, error) {
	if ref == "" {
		return store.SnapshotRecord{}, validate.Errorf("no snapshot is named; set its id or name")
	}
	if len(ref) > sandbox.MaxNameLength || validate.Text("snapshot", ref) != nil {
		return store.SnapshotRecord{}, NoSnapshot(ref)
	}
	var snap store.SnapshotRecord
	var err error
	if ids.IsSnapshot(ref) {
		snap, err = g.cfg.Store.Snapshot(ctx, ref)
	} else {
		snap, err = g.cfg.Store.SnapshotByName(ctx, in.Team, in.Namespace, ref)
	}
	if sandbox.CodeOf(err) == sandbox.CodeNotFound || err == nil && !in.Has(snap.Team, snap.Namespace) {
		return store.SnapshotRecord{}, NoSnapshot(ref)
	}
	return snap, err
}

// PolicyOf returns the network policy of a record.
func PolicyOf(r *store.Record) sandbox.NetworkPolicy {
	if r.Network == nil {
		return sandbox.NetworkPolicy{Preset: sandbox.NetworkOpen}
	}
	return *r.Network
}
