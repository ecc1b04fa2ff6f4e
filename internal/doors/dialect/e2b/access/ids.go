package access

import (
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
)

// Ids of sandboxes are "sbx-" and random characters. E2B's clients require [a-z0-9]+,
// so they get the id without the dash.
const (
	covePrefix = "sbx-"
	e2bPrefix  = "sbx"
)

// ToE2B returns the id of a sandbox for E2B's clients.
func ToE2B(id string) string { return e2bPrefix + strings.TrimPrefix(id, covePrefix) }

// FromE2B returns Cove's id of a sandbox, and false if id is invalid. Like the product
// it accepts ID-CLIENT too, and ignores CLIENT.
func FromE2B(id string) (string, bool) {
	id, _, _ = strings.Cut(id, "-")
	random, ok := strings.CutPrefix(id, e2bPrefix)
	if id = covePrefix + random; !ok || !sdkdoor.ValidID(id) {
		return "", false
	}
	return id, true
}
