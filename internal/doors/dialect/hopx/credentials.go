package hopx

import (
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// credentials are a login to the registry of a build's image, for that build only.
type credentials struct {
	Type     string              `json:"type"`
	Username string              `json:"username"`
	Password sandbox.SecretValue `json:"password"`
	Token    sandbox.SecretValue `json:"token"`
}

// registryHosts are the registries of each type; their subdomains match too. Types that
// people host themselves are not listed and match any registry.
var registryHosts = map[string][]string{
	"basic": nil, "gitlab": nil,
	"github": {"ghcr.io", "docker.pkg.github.com"},
	"gcr":    {"gcr.io", "pkg.dev"},
	"ecr":    {"amazonaws.com", "amazonaws.com.cn", "public.ecr.aws"},
}

// login returns the login in the service's terms. A token for one company's registry is not
// sent to another, even if the image's name is wrong.
func (c *credentials) login(image string) (*sandbox.RegistryLogin, error) {
	if c == nil {
		return nil, nil
	}
	kind := strings.ToLower(c.Type)
	if kind == "" {
		kind = "basic"
	}
	hosts, ok := registryHosts[kind]
	if !ok {
		return nil, dialect.Invalid("registry_credentials.type %q is not known; use basic, github, gitlab, ecr or gcr", clip.Text(c.Type, maxShown))
	}
	host := registryOf(image)
	if len(hosts) > 0 && !slices.ContainsFunc(hosts, func(h string) bool { return host == h || strings.HasSuffix(host, "."+h) }) {
		return nil, dialect.Invalid("registry_credentials are of type %s, and from_image is at %s, which is none of its registries; use type basic if they are for that one", kind, clip.Text(host, maxShown))
	}
	l := &sandbox.RegistryLogin{Username: c.Username, Password: c.Password}
	if l.Password.Reveal() == "" {
		l.Password = c.Token
	}
	if l.Password.Reveal() == "" {
		return nil, dialect.Invalid("registry_credentials have no password; give one, or a token")
	}
	if l.Username == "" {
		switch kind {
		case "github":
			l.Username = "token" // any will do
		case "gitlab":
			l.Username = "oauth2"
		case "ecr":
			l.Username = "AWS"
		case "gcr":
			l.Username = "oauth2accesstoken"
			if strings.HasPrefix(strings.TrimSpace(l.Password.Reveal()), "{") {
				l.Username = "_json_key"
			}
		default:
			return nil, dialect.Invalid("registry_credentials have no username; give one")
		}
	}
	if strings.Contains(host, ".amazonaws.com") && (strings.HasPrefix(l.Username, "AKIA") || strings.HasPrefix(l.Username, "ASIA")) {
		return nil, sandbox.Errorf(sandbox.CodeUnsupported, "keys of AWS are not exchanged for a password here; give username AWS and what aws ecr get-login-password prints")
	}
	return l, nil
}

// registryOf returns the host of an image's registry.
func registryOf(image string) string {
	host, _, found := strings.Cut(image, "/")
	if !found || !strings.ContainsAny(host, ".:") && host != "localhost" {
		return "docker.io"
	}
	host, _, _ = strings.Cut(strings.ToLower(host), ":")
	return host
}
