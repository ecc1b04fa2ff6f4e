package gate

import "strings"

// HostName is the name of a request's host in lower case, without the port.
func HostName(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		host = host[:i]
	}
	return strings.TrimRight(strings.ToLower(host), ".")
}

const (
	idPrefix = "sbx-"
	idRandom = 26
)

// ValidID reports whether an id has the form of a sandbox's. Names have not: products'
// clients know ids.
func ValidID(id string) bool {
	random, ok := strings.CutPrefix(id, idPrefix)
	return ok && len(random) == idRandom && strings.Trim(random, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}
