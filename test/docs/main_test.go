package docs

import (
	"os"
	"testing"

	"github.com/cove-sh/cove/test/covetest"
)

func TestMain(m *testing.M) { os.Exit(covetest.Main(m)) }
