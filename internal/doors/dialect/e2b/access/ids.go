package access

import "strings"

// Ids of sandboxes are SBX-plus-random in Cove, "sbx-…"; E2B's clients want
// [a-z0-9]+, so there they are without the dash: "sbx…".
const (
	covePrefix = "sbx-"
	e2bPrefix  = "sbx"
	idRandom   = 26
)

// ToE2B returns the id that E2B's clients have of a sandbox.
func ToE2B(id string) string { return e2bPrefix + strings.TrimPrefix(id, covePrefix) }

// FromE2B returns Cove's id of a sandbox, and false for what is no id. Like the
// product it takes ID-CLIENT too, where CLIENT means nothing.
func FromE2B(id string) (string, bool) {
	id, _, _ = strings.Cut(id, "-")
	random, ok := strings.CutPrefix(id, e2bPrefix)
	if !ok || len(random) != idRandom {
		return "", false
	}
	for _, c := range []byte(random) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return "", false
		}
	}
	return covePrefix + random, true
}
