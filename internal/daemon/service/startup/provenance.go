package startup

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// SetRoot records what a sandbox is made from and what runs in it from the start.
func SetRoot(r *store.Record, root engine.Root, start *Startup) error {
	data, err := json.Marshal(Provenance{root, start})
	if err != nil {
		return fmt.Errorf("encode the root of sandbox %s: %w", r.ID, err)
	}
	r.Root, r.Origin = data, root.Digest
	return nil
}

// RootOf returns what a sandbox or snapshot is made from.
func RootOf(data json.RawMessage) (engine.Root, error) {
	var root engine.Root
	if err := json.Unmarshal(data, &root); err != nil {
		return root, fmt.Errorf("decode the root of a sandbox: %w", err)
	}
	return root, nil
}

// Provenance is what a record keeps about what it was made from. Code that needs only
// the root reads it as an [engine.Root].
type Provenance struct {
	engine.Root
	Startup *Startup `json:"Begins,omitempty"`
}

// Recorded returns the startup that the record of a sandbox or snapshot keeps, or nil.
func Recorded(root json.RawMessage) *Startup {
	// Most records have none, and decoding a long root takes time.
	if !bytes.Contains(root, []byte(`"Begins":`)) {
		return nil
	}
	var from struct{ Begins *Startup }
	if err := json.Unmarshal(root, &from); err != nil {
		return nil
	}
	return from.Begins
}

// DesktopOf returns the desktop of a record, or nil.
func DesktopOf(r *store.Record) *sandbox.Desktop {
	if b := Recorded(r.Root); b != nil {
		return b.Desktop
	}
	return nil
}
