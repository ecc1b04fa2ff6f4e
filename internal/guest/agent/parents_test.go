package agent

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
)

// Many calls can make the same directories at once, each to put a file there.
func TestMakeParentsAtOnce(t *testing.T) {
	owner := account{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}
	for round := range 200 {
		dir := filepath.Join(t.TempDir(), "a", "b")
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				err := makeParents(dir, &owner)
				if err == nil {
					err = os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o600)
				}
				if err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
	}
}
