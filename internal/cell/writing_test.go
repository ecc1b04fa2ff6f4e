package cell

import (
	"testing"

	"github.com/cove-sh/cove/internal/machine"
)

const mib = 1 << 20

// free is a machine with so much memory available, of 16 GiB.
func free(n int64) []machine.Memory {
	return []machine.Memory{{Total: 16 << 30, Available: n}}
}

// A sandbox goes on early only as far as its copies fit below its own limit and leave
// others half of what is free.
func TestCopyRoom(t *testing.T) {
	for name, tt := range map[string]struct {
		bounds             []machine.Memory
		file, limit, inUse int64
		want               int64
	}{
		"all":                    {free(8 << 30), 0, 2048 * mib, 500 * mib, 500 * mib},
		"no limit":               {free(8 << 30), 0, 0, 500 * mib, 500 * mib},
		"below its limit":        {free(8 << 30), 0, 1024 * mib, 600 * mib, 296 * mib},
		"at its limit":           {free(8 << 30), 0, 1024 * mib, 900 * mib, 0},
		"above its limit":        {free(8 << 30), 0, 1024 * mib, 1500 * mib, 0},
		"half of what is free":   {free(2 << 30), 0, 4096 * mib, 1500 * mib, 512 * mib},
		"nothing is free":        {free(100 * mib), 0, 4096 * mib, 1500 * mib, 0},
		"file in memory":         {free(3 << 30), 1500 * mib, 4096 * mib, 1500 * mib, 274 * mib},
		"the smallest of bounds": {append(free(8<<30), machine.Memory{Group: "g", Total: 1024 * mib, Available: 328 * mib}), 0, 0, 500 * mib, 100 * mib},
	} {
		if got := copyRoom(tt.bounds, tt.file, tt.limit, tt.inUse); got != tt.want {
			t.Errorf("%s: %d MiB, want %d", name, got/mib, tt.want/mib)
		}
	}
}

// A sandbox stands still before its agent would end a program, and before the machine's
// memory is used up.
func TestIsShort(t *testing.T) {
	for name, tt := range map[string]struct {
		bounds       []machine.Memory
		limit, inUse int64
		want         bool
	}{
		"room":             {free(8 << 30), 1024 * mib, 900 * mib, false},
		"near its limit":   {free(8 << 30), 1024 * mib, 1000 * mib, true},
		"no limit":         {free(8 << 30), 0, 1000 * mib, false},
		"machine is short": {free(400 * mib), 1024 * mib, 100 * mib, true},
		"not looked at":    {nil, 1024 * mib, 100 * mib, false},
	} {
		if got := isShort(tt.bounds, tt.limit, tt.inUse); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
