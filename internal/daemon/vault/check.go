package vault

import (
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/sandbox"
)

const (
	maxPrefix = 64
	maxUser   = 255
	maxParam  = 128
)

// framingHeaders control where a request goes and where it ends, and so cannot carry
// a value.
var framingHeaders = []string{
	"connection", "content-encoding", "content-length", "content-type", "expect", "host", "http2-settings", "keep-alive",
	"proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
}

// Complete checks a request to create a secret and fills in the provider's settings
// and the defaults: the result has Hosts and Auth, and its hosts are normalized for
// comparison. The error, if any, is a [sandbox.Error] that does not reveal the value.
func Complete(req sandbox.CreateSecretRequest) (sandbox.CreateSecretRequest, error) {
	if err := checkName(req.Name); err != nil {
		return req, err
	}
	if err := CheckValue(req.Value); err != nil {
		return req, err
	}
	if req.Provider != "" {
		p, err := findPreset(req.Provider)
		if err != nil {
			return req, err
		}
		if len(req.Hosts) == 0 {
			req.Hosts = p.hosts
		}
		if req.Auth == nil {
			req.Auth = &p.auth
		}
	}
	if len(req.Hosts) == 0 {
		return req, sandbox.Errorf(sandbox.CodeInvalid, "a secret needs the hosts its value may be sent to, such as \"api.example.com\": set hosts, or a provider that has them")
	}
	hosts, err := checkHosts(req.Hosts)
	if err != nil {
		return req, err
	}
	auth := bearer
	if req.Auth != nil {
		auth = *req.Auth
	}
	if auth, err = checkAuth(auth); err != nil {
		return req, err
	}
	req.Hosts, req.Auth = hosts, &auth
	return req, nil
}

func checkName(name string) error {
	if name == "" || len(name) > sandbox.MaxNameLength || strings.Trim(name, base64url) != "" {
		return sandbox.Errorf(sandbox.CodeInvalid, "a secret's name must be 1 to %d of the characters a-z, A-Z, 0-9, _ and -", sandbox.MaxNameLength)
	}
	return nil
}

// CheckValue checks that a header can carry a secret's value.
func CheckValue(v sandbox.SecretValue) error {
	value := v.Reveal()
	switch {
	case value == "":
		return sandbox.Errorf(sandbox.CodeInvalid, "a secret needs a value")
	case len(value) > sandbox.MaxSecretBytes:
		return sandbox.Errorf(sandbox.CodeTooLarge, "the value has %d bytes: a secret has at most %d", len(value), sandbox.MaxSecretBytes)
	case strings.ContainsAny(value, "\r\n"):
		return sandbox.Errorf(sandbox.CodeInvalid, "the value has a line break, which HTTP headers cannot carry: remove it, or encode a key file as base64")
	case !fitsHeader(value):
		return sandbox.Errorf(sandbox.CodeInvalid, "the value has control characters, which HTTP headers cannot carry: encode it as base64")
	case strings.Trim(value, " \t") != value:
		return sandbox.Errorf(sandbox.CodeInvalid, "the value begins or ends with white space, which HTTP removes: remove it")
	}
	return nil
}

func checkHosts(hosts []string) ([]string, error) {
	if len(hosts) > sandbox.MaxSecretHosts {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "a secret has at most %d hosts: use \"*.domain\" for all below a domain", sandbox.MaxSecretHosts)
	}
	if slices.Equal(hosts, []string{sandbox.AnyHost}) {
		return hosts, nil
	}
	list := make([]string, 0, len(hosts))
	for _, h := range hosts {
		clean, err := checkHost(h)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(list, clean) {
			list = append(list, clean)
		}
	}
	return list, nil
}

// checkHost returns a host in lower case without a final dot.
func checkHost(host string) (string, error) {
	h := strings.TrimSuffix(strings.ToLower(host), ".")
	invalid := func(why string) (string, error) {
		return "", sandbox.Errorf(sandbox.CodeInvalid, "host %q: %s", clip.Text(host, maxShown), why)
	}
	if addr, err := netip.ParseAddr(h); err == nil {
		if addr.Zone() != "" || addr.Is4In6() {
			return invalid("use the address in its plain form")
		}
		return addr.String(), nil
	}
	switch {
	case strings.Contains(h, "://"):
		return invalid("use only the host, without scheme and path")
	case strings.Contains(h, "/"):
		return invalid("use a domain; a secret cannot be for a range of addresses")
	case strings.Contains(h, ":"):
		return invalid("use the host without a port: a secret is for all ports on which the host speaks TLS")
	}
	domain, wildcard := strings.CutPrefix(h, "*.")
	if why := checkDomain(domain); why != "" {
		return invalid(why)
	}
	if wildcard {
		if suffix, _ := publicsuffix.PublicSuffix(domain); suffix == domain { // such as "com"
			return invalid("anybody can get a name below " + domain + ": use the domain that is yours")
		}
	}
	return h, nil
}

// checkDomain returns what is wrong with a domain, or "".
func checkDomain(d string) string {
	const notDomain = "it is not a domain, such as \"api.example.com\", nor \"*.\" and a domain"
	if d == "" || len(d) > 253 {
		return "a domain has 1 to 253 characters"
	}
	for label := range strings.SplitSeq(d, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return notDomain
		}
		for i := range len(label) {
			if c := label[i]; c >= 0x80 {
				return "write a name with other letters in its ASCII form (\"xn--…\")"
			} else if strings.IndexByte(base64url, c) < 0 {
				return notDomain
			}
		}
	}
	// Top-level domains never begin with a digit, and some programs take 127.1 and
	// 0x7f.1 for addresses.
	last := d[strings.LastIndexByte(d, '.')+1:]
	if last[0] >= '0' && last[0] <= '9' {
		return "it ends like an address but is not one: write an IPv4 address as four decimal numbers"
	}
	return ""
}

func checkAuth(a sandbox.SecretAuth) (sandbox.SecretAuth, error) {
	invalid := func(format string, args ...any) (sandbox.SecretAuth, error) {
		return a, sandbox.Errorf(sandbox.CodeInvalid, format, args...)
	}
	switch a.Type {
	case "header":
		if a.Name == "" {
			a.Name = "Authorization"
		}
		if !isToken(a.Name) || len(a.Name) > maxParam {
			return invalid("auth.name is not the name of a header")
		}
		if slices.Contains(framingHeaders, strings.ToLower(a.Name)) {
			return invalid("auth.name: the header %s cannot carry a secret", a.Name)
		}
		if len(a.Prefix) > maxPrefix || !fitsHeader(a.Prefix) {
			return invalid("auth.prefix goes before the value in the header, such as \"Bearer \": at most %d characters in one line", maxPrefix)
		}
		if !isUser(a.User) {
			return invalid(badUser, maxUser)
		}
	case "basic":
		if !isUser(a.User) {
			return invalid(badUser, maxUser)
		}
		if a.Name != "" || a.Prefix != "" {
			return invalid("auth.name and auth.prefix do not work with the type basic, which always uses the Authorization header")
		}
	case "query":
		if a.Name == "" || len(a.Name) > maxParam || strings.ContainsAny(a.Name, "\x00\r\n") {
			return invalid("auth.name is required for the type query: the name of the parameter, such as \"key\"")
		}
		if a.Prefix != "" || a.User != "" {
			return invalid("auth.prefix and auth.user do not work with the type query")
		}
	default:
		return invalid("auth.type %q is not valid: use header, basic or query", clip.Text(a.Type, maxShown))
	}
	return a, nil
}

// badUser is the error text for an invalid user name; its argument is [maxUser].
const badUser = "auth.user must be a user name of at most %d characters without a colon"

// isUser reports whether s can be the user name in basic authentication.
func isUser(s string) bool {
	return len(s) <= maxUser && !strings.Contains(s, ":") && fitsHeader(s)
}

// fitsHeader reports whether a header can carry s: it has no control characters
// except tabs.
func fitsHeader(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) < 0
}

// isToken reports whether s is a token of RFC 9110, as header names are.
func isToken(s string) bool {
	return s != "" && strings.Trim(s, alnum+"!#$%&'*+-.^_`|~") == ""
}
