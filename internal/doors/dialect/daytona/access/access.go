// Package access has what the planes of Daytona's door share: who may call, and which
// properties of a sandbox are kept in tags.
package access

import (
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/sandbox"
)

// The headers and parameters in which visitors of previews, and clients that cannot set
// headers, send a token.
const (
	HeaderPreview = "X-Daytona-Preview-Token"
	ParamToken    = "DAYTONA_SANDBOX_AUTH_KEY"
)

// PortToolbox is a port for which clients that cannot set headers request a preview, to
// get a token for the toolbox. Nothing is served on it.
const PortToolbox = 1

// The purposes of tokens.
const (
	// Toolbox gives access to a sandbox's toolbox.
	Toolbox gate.Purpose = "toolbox"
	// Files is the purpose of the key with which clients sign links to files.
	Files gate.Purpose = "files"
)

// Preview is the purpose of a token that opens the preview of one port, and nothing else.
func Preview(port int) gate.Purpose { return gate.Purpose("preview " + strconv.Itoa(port)) }

// ErrToken is the error for a missing or wrong token.
var ErrToken = sandbox.Errorf(sandbox.CodeUnauthenticated, "the token or signature is not valid for this sandbox; ask for a new one")

// NewGate returns a gate; product and refusal are filled in.
func NewGate(cfg gate.Config) *gate.Gate {
	cfg.Product, cfg.Refusal = "daytona", ErrToken
	return gate.New(cfg)
}

// Metadata of a sandbox that begins with HiddenPrefix is Cove's own: clients can neither
// set nor see it.
const HiddenPrefix = "cove."

// The tags of a sandbox in which the door stores what Cove has no field for.
const (
	tagPrefix = HiddenPrefix + "daytona."
	// TagPublic marks a sandbox whose previews are open to all.
	TagPublic = tagPrefix + "public"
	// TagSnapshot is the snapshot that a client named at the creation.
	TagSnapshot = tagPrefix + "snapshot"
	// TagArchive is after how many minutes a stopped sandbox counts as archived.
	TagArchive = tagPrefix + "auto-archive"
	// TagAutoPause marks a sandbox whose idle time pauses it, and does not stop it.
	TagAutoPause = tagPrefix + "auto-pause"
	// TagEphemeral marks a sandbox that is deleted when it is stopped.
	TagEphemeral = tagPrefix + "ephemeral"
	// tagPaused is the state in which clients have set a paused sandbox, and when that
	// pause began: another pause has made it void.
	tagPaused = tagPrefix + "paused-as"
)

// DefaultArchive is after how many minutes a stopped sandbox counts as archived unless
// its client says otherwise; MaxArchive is the longest.
const (
	DefaultArchive = 7 * 24 * 60
	MaxArchive     = 30 * 24 * 60
)

// The states of sandboxes as clients know them.
const (
	Creating   = "creating"
	Started    = "started"
	Stopped    = "stopped"
	Paused     = "paused"
	Archived   = "archived"
	Destroying = "destroying"
	Destroyed  = "destroyed"
	Failed     = "error"
)

// State returns the state of a sandbox as clients know it, at a time. For Cove, stopped,
// paused and archived are one state.
func State(box *sandbox.Sandbox, now time.Time) string {
	switch box.State {
	case sandbox.StateCreating:
		return Creating
	case sandbox.StateRunning:
		return Started
	case sandbox.StateStopping:
		return Destroying
	case sandbox.StateKilled:
		return Destroyed
	case sandbox.StatePaused:
	default:
		return Failed
	}
	if box.PausedAt == nil {
		return Stopped
	}
	as, since, _ := strings.Cut(box.Metadata[tagPaused], "@")
	if since != pauseOf(box) {
		as = Stopped // by its idle time, or through another door
		if box.Metadata[TagAutoPause] != "" {
			as = Paused
		}
	}
	switch {
	case as == Paused || as == Archived:
		return as
	case now.Sub(*box.PausedAt) >= time.Duration(ArchiveAfter(box))*time.Minute:
		return Archived
	}
	return Stopped
}

// PausedAs returns the key and value of the tag that gives a paused sandbox one of the
// product's states.
func PausedAs(box *sandbox.Sandbox, state string) (key, value string) {
	return tagPaused, state + "@" + pauseOf(box)
}

func pauseOf(box *sandbox.Sandbox) string {
	if box.PausedAt == nil {
		return ""
	}
	return strconv.FormatInt(box.PausedAt.UnixMilli(), 10)
}

// ArchiveAfter is after how many minutes a stopped sandbox counts as archived.
func ArchiveAfter(box *sandbox.Sandbox) int64 {
	n, err := strconv.ParseInt(box.Metadata[TagArchive], 10, 64)
	switch {
	case err != nil || n < 0:
		return DefaultArchive
	case n == 0:
		return MaxArchive
	}
	return n
}
