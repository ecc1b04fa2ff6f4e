// Package console tests the web console as people use it: in Debian's headless
// Chromium, against the built program with real sandboxes. With
// COVE_CONSOLE_PICTURES=1 it also takes the pictures of docs/console.md.
package console

import (
	"os"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
)

func TestMain(m *testing.M) { os.Exit(covetest.Main(m)) }
