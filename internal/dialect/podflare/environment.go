package podflare

import (
	"net/url"
	"strings"
)

// Environment reads the product's variables: the server to talk to in place of
// the local daemon, and the key for it. An address of the product's own service
// is not one of ours, and left out.
func (d *Dialect) Environment(get func(string) string) (server, key string) {
	for _, name := range []string{"PODFLARE_HOST", "PODFLARE_HOSTD_URL"} {
		if server = get(name); server != "" {
			break
		}
	}
	if u, err := url.Parse(server); err == nil {
		host := "." + strings.ToLower(u.Hostname())
		if strings.HasSuffix(host, ".podflare.dev") || strings.HasSuffix(host, ".podflare.ai") {
			server = ""
		}
	}
	return server, get("PODFLARE_API_KEY")
}
