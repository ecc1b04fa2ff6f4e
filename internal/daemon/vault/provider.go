package vault

import (
	"crypto/rand"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/sandbox"
)

const (
	alnum     = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	base64url = alnum + "-_"
)

// maxShown bounds how much of the caller's input an error quotes, in bytes.
const maxShown = 64

// shape describes the format of a service's tokens. A placeholder has the same
// format, since clients check it.
type shape struct {
	prefix   string
	length   int
	alphabet string
}

// defaultShape is the shape for a secret without a provider.
var defaultShape = shape{"cove_", 43, base64url}

type preset struct {
	name, title, env string
	hosts            []string
	auth             sandbox.SecretAuth
	shape            shape
}

var bearer = sandbox.SecretAuth{Type: "header", Name: "Authorization", Prefix: "Bearer "}

// withUser adds a user name, with which the token is also accepted as a password in
// basic authentication, as git sends it.
func withUser(auth sandbox.SecretAuth, user string) sandbox.SecretAuth {
	auth.User = user
	return auth
}

func header(name string) sandbox.SecretAuth { return sandbox.SecretAuth{Type: "header", Name: name} }

// presets is ordered by name.
var presets = []preset{
	{"anthropic", "Anthropic", "ANTHROPIC_API_KEY", []string{"api.anthropic.com"}, header("x-api-key"), shape{"sk-ant-api03-", 48, alnum}},
	{"asana", "Asana", "ASANA_ACCESS_TOKEN", []string{"app.asana.com"}, bearer, shape{"", 32, alnum}},
	{"cloudflare", "Cloudflare", "CLOUDFLARE_API_TOKEN", []string{"api.cloudflare.com"}, bearer, shape{"", 40, alnum}},
	{"exa", "Exa", "EXA_API_KEY", []string{"api.exa.ai"}, header("x-api-key"), shape{"", 32, alnum}},
	{"firecrawl", "Firecrawl", "FIRECRAWL_API_KEY", []string{"api.firecrawl.dev"}, bearer, shape{"fc-", 36, alnum}},
	{"gemini", "Google Gemini", "GEMINI_API_KEY", []string{"generativelanguage.googleapis.com"}, header("x-goog-api-key"), shape{"AIza", 35, base64url}},
	{"github", "GitHub", "GITHUB_TOKEN", []string{"api.github.com", "github.com"}, withUser(bearer, "x-access-token"), shape{"ghp_", 36, alnum}},
	{"gitlab", "GitLab", "GITLAB_TOKEN", []string{"gitlab.com"}, withUser(header("PRIVATE-TOKEN"), "oauth2"), shape{"glpat-", 20, alnum}},
	{"linear", "Linear", "LINEAR_API_KEY", []string{"api.linear.app"}, header("Authorization"), shape{"lin_api_", 32, alnum}},
	{"notion", "Notion", "NOTION_TOKEN", []string{"api.notion.com"}, bearer, shape{"ntn_", 43, alnum}},
	{"openai", "OpenAI", "OPENAI_API_KEY", []string{"api.openai.com"}, bearer, shape{"sk-proj-", 64, alnum}},
	{"openrouter", "OpenRouter", "OPENROUTER_API_KEY", []string{"openrouter.ai"}, bearer, shape{"sk-or-v1-", 64, alnum}},
	{"perplexity", "Perplexity", "PERPLEXITY_API_KEY", []string{"api.perplexity.ai"}, bearer, shape{"pplx-", 48, alnum}},
	{"resend", "Resend", "RESEND_API_KEY", []string{"api.resend.com"}, bearer, shape{"re_", 24, alnum}},
	{"sentry", "Sentry", "SENTRY_AUTH_TOKEN", []string{"sentry.io"}, bearer, shape{"sntrys_", 32, alnum}},
	{"slack", "Slack", "SLACK_BOT_TOKEN", []string{"slack.com"}, bearer, shape{"xoxb-", 43, base64url}},
	{"stripe", "Stripe", "STRIPE_API_KEY", []string{"api.stripe.com"}, bearer, shape{"sk_test_", 24, alnum}},
	{"vercel", "Vercel", "VERCEL_TOKEN", []string{"api.vercel.com"}, bearer, shape{"vcp_", 24, alnum}},
	{"xai", "xAI", "XAI_API_KEY", []string{"api.x.ai"}, bearer, shape{"xai-", 80, alnum}},
}

func findPreset(name string) (preset, error) {
	i, ok := slices.BinarySearchFunc(presets, name, func(p preset, name string) int { return strings.Compare(p.name, name) })
	if !ok {
		return preset{}, sandbox.Errorf(sandbox.CodeInvalid, "there is no provider %q: use one of %s, or set the hosts yourself", clip.Text(name, maxShown), providerNames())
	}
	return presets[i], nil
}

func providerNames() string {
	names := make([]string, len(presets))
	for i, p := range presets {
		names[i] = p.name
	}
	return strings.Join(names, ", ")
}

// Providers returns the presets by name. The caller owns the result.
func Providers() []sandbox.Provider {
	list := make([]sandbox.Provider, len(presets))
	for i, p := range presets {
		list[i] = sandbox.Provider{
			Name: p.name, Title: p.title, Env: p.env, Auth: p.auth,
			Hosts:      slices.Clone(p.hosts),
			TokenShape: p.shape.prefix + "...",
		}
	}
	return list
}

// NewPlaceholder returns a random placeholder in the shape of a provider's tokens, or
// in Cove's own shape if provider is "".
func NewPlaceholder(provider string) (string, error) {
	s := defaultShape
	if provider != "" {
		p, err := findPreset(provider)
		if err != nil {
			return "", err
		}
		s = p.shape
	}
	return s.random(), nil
}

func (s shape) random() string {
	token := make([]byte, 0, len(s.prefix)+s.length)
	token = append(token, s.prefix...)
	// Bytes above the last multiple of the alphabet's size are skipped: they would
	// favour the first characters of the alphabet.
	limit := 256 - 256%len(s.alphabet)
	for buf := make([]byte, 2*s.length); len(token) < cap(token); {
		rand.Read(buf)
		for _, b := range buf {
			if int(b) < limit && len(token) < cap(token) {
				token = append(token, s.alphabet[int(b)%len(s.alphabet)])
			}
		}
	}
	return string(token)
}
