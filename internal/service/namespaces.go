package service

import (
	"cmp"

	"github.com/cove-sh/cove/internal/store"
	"github.com/cove-sh/cove/sandbox"
)

// realm is what a caller may know of: a namespace of a team, or for "" all of
// the team. Volumes, secrets and templates are the team's in any case.
type realm struct{ team, namespace string }

// realmOf is where a sandbox finds others by their names.
func realmOf(r *store.Record) realm { return realm{r.Team, r.Namespace} }

// has reports whether a sandbox or snapshot is in the realm.
func (m realm) has(team, namespace string) bool {
	return m.team == team && (m.namespace == "" || m.namespace == namespace)
}

func (v *visit) realm() realm { return realm{v.caller.Team, v.caller.Namespace} }

// anyNamespace asks for those of all namespaces that the caller may know of.
const anyNamespace = "*"

// namespace returns the namespace that a request asks for, of a caller that may
// be in one. Another than the caller's is refused, whether it is there or not.
func (v *visit) namespace(asked string) (string, error) {
	own := v.caller.Namespace
	if asked == anyNamespace {
		asked = ""
	}
	if asked != "" {
		if err := checkName("namespace", asked); err != nil {
			return "", err
		}
	}
	if own != "" && asked != "" && asked != own {
		return "", sandbox.Errorf(sandbox.CodeForbidden, "you work in the namespace %q, and the request names %q; leave the namespace out of it, or connect with that namespace", own, asked)
	}
	return cmp.Or(own, asked), nil
}

// needTeam refuses what concerns the whole team to a caller that is in one
// namespace.
func (v *visit) needTeam(what string) error {
	if v.caller.Namespace == "" {
		return nil
	}
	return sandbox.Errorf(sandbox.CodeForbidden, "%s is the whole team's, and you work in the namespace %q; ask without a namespace", what, v.caller.Namespace)
}
