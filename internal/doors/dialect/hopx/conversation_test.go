package hopx_test

import (
	"regexp"
	"testing"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
)

// differs matches what is never the same: durations, process ids, the machine.
var differs = []struct {
	pattern *regexp.Regexp
	shown   string
}{
	{regexp.MustCompile(`("(?:execution_time|duration|pid|uptime)": )[0-9.]+`), `$1<n>`},
	{regexp.MustCompile(`("uptime": )"[0-9hms.]+"`), `$1"<n>"`},
	{regexp.MustCompile(`Architecture: \w+`), `Architecture: <arch>`},
	{regexp.MustCompile(`("arch": )"\w+"`), `$1"<arch>"`},
	{regexp.MustCompile(`("size": )\d+(,\s+"is_directory": true)`), `$1<n>$2`},
	// A message on slow machines.
	{regexp.MustCompile(`Matplotlib is building the font cache; this may take a moment\.\\*n`), ``},
	// The last line of df.
	{regexp.MustCompile(`Disk:\\n[^"]*%[^"]*"`), `Disk:\n<disk>"`},
	{regexp.MustCompile(`File \\*"[^"\\]*\\*", line`), `File <code>, line`},
}

func hide(s string) string {
	for _, d := range differs {
		s = d.pattern.ReplaceAllString(s, d.shown)
	}
	return s
}

// revision is the protocol version of the product's clients.
const revision = "2025-06-18"

// conversations runs the scripts of a generation through one door.
func conversations(t *testing.T, daemon *covetest.Daemon, d dialect.Dialect, scripts, door string) {
	open := dialecttest.Doors(daemon, d.Name())[door]
	dialecttest.Conversations(t, d, scripts, dialecttest.Through(daemon, open, revision, hide))
}
