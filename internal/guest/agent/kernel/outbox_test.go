package kernel

import (
	"testing"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

// TestOutboxBoundsMetadata adds outputs that are large except for their data.
func TestOutboxBoundsMetadata(t *testing.T) {
	big := make([]byte, sandbox.MaxOutputBytes)
	for name, out := range map[string]*agentv1.CodeOutput{
		"data":     {Data: map[string][]byte{"text/plain": big}},
		"metadata": {Data: map[string][]byte{"text/plain": nil}, Metadata: map[string][]byte{"text/plain": big}},
		"files":    {Files: map[string]string{"text/plain": string(big)}},
	} {
		o, n := NewOutbox(1), 0
		for o.Add(out) {
			n++
		}
		if most := sandbox.MaxOutputsBytes / sandbox.MaxOutputBytes; n > most {
			t.Errorf("%s: %d outputs are kept, want at most %d", name, n, most)
		}
	}
}
