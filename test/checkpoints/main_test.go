package checkpoints

import (
	"os"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
)

func TestMain(m *testing.M) { os.Exit(covetest.Main(m)) }
