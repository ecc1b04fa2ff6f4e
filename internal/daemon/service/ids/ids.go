// Package ids makes ids. The prefix of an id says what it names. No name may begin like
// an id, so that the two are never confused.
package ids

import (
	"crypto/rand"
	"strings"
)

// The prefixes of ids.
const (
	Sandbox    = "sbx-"
	Snapshot   = "snap-"
	Volume     = "vol-"
	Secret     = "sec-"
	Preview    = "prv-"
	Build      = "bld-"
	Job        = "job-"
	Delivery   = "whd-"
	Checkpoint = "ckp-"
	// Golden begins the ids of golden checkpoints, which are not random.
	Golden = "golden-"
)

// New returns an unguessable id (130 bits) that is a valid DNS label.
func New(prefix string) string { return prefix + strings.ToLower(rand.Text()) }

// IsSandbox reports whether a reference is the id of a sandbox, and not a name.
func IsSandbox(ref string) bool { return strings.HasPrefix(ref, Sandbox) }

// IsSnapshot reports whether a reference is the id of a snapshot.
func IsSnapshot(ref string) bool { return strings.HasPrefix(ref, Snapshot) }

// IsVolume reports whether a reference is the id of a volume.
func IsVolume(ref string) bool { return strings.HasPrefix(ref, Volume) }
