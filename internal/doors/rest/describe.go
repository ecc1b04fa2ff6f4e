package rest

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cove-sh/cove/sandbox"
)

// forClients replaces terms of the Go comments with those of REST.
var forClients = strings.NewReplacer(
	"If ctx is cancelled", "If the client disconnects", "Cancelling ctx", "A client that disconnects", "until ctx is cancelled", "until the client disconnects",
	"killAfterMS", "`kill_after_ms`", "EndedRetention", hours(sandbox.EndedRetention), "NetworkLogRetention", hours(sandbox.NetworkLogRetention),
	` For "" it returns those of the caller's whole team, sorted by sandbox and port.`, "",
)

// describeOperation describes an operation with the comment on its verb in package
// sandbox, unless the operation has its own description.
func describeOperation(o *huma.Operation, texts map[string]string) {
	if o.Description != "" {
		return
	}
	verb := infoOf(o).Verb
	text := texts[verb+"()"]
	if rest, ok := strings.CutPrefix(text, verb+" "); ok {
		text = upperFirst(rest)
	}
	o.Description = forClients.Replace(text)
}

func hours(d time.Duration) string { return fmt.Sprintf("%d hours", d/time.Hour) }

func upperFirst(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(r)) + s[n:]
}
