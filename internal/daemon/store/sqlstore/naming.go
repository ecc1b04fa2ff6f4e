package sqlstore

import (
	"github.com/cove-sh/cove/sandbox"
)

// naming looks for what has a name in a namespace, or in a whole team.
type naming struct{ team, namespace, name string }

// where selects at most two rows: by an order of the caller's, then what is in the
// default namespace, then the newest. The second row tells whether the name means
// two things.
func (n naming) where(order string) string {
	return "WHERE team = ? AND name = ? AND (? = '' OR namespace = ?) ORDER BY " + order + "namespace = ? DESC, created_at DESC, id DESC LIMIT 2"
}

func (n naming) args() []any {
	return []any{n.team, n.name, n.namespace, n.namespace, sandbox.DefaultNamespace}
}

func (n naming) ambiguous(what, one, other string) error {
	return sandbox.Errorf(sandbox.CodeConflict, "the namespaces %q and %q both have a %s named %q; say which namespace, or give its id", one, other, what, n.name)
}
