package escape

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/testing/covetest"
)

func TestMain(m *testing.M) {
	// Processes that are started here can write core files unless they prevent it
	// themselves.
	limit := unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &limit); err != nil {
		fmt.Fprintln(os.Stderr, "allow core files, to see them prevented:", err)
	}
	os.Exit(covetest.Main(m))
}
