package podflare

import (
	"github.com/cove-sh/cove/internal/doors/dialect"
)

// Environment reads the product's variables: the server to talk to in place of
// the local daemon, and the key for it. An address of the product's own service
// is not one of ours, and left out.
func (d *Dialect) Environment(get func(string) string) (server, key string) {
	server = dialect.ServerAt([]string{get("PODFLARE_HOST"), get("PODFLARE_HOSTD_URL")}, "podflare.dev", "podflare.ai")
	return server, get("PODFLARE_API_KEY")
}
