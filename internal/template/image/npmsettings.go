package image

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// NPMSettings are this machine's settings for reaching npm's registry, without
// credentials.
type NPMSettings struct {
	// Registry, Proxy and HTTPSProxy are URLs; "" is npm's default.
	Registry, Proxy, HTTPSProxy string
	// Authorities are additional trusted certificates in PEM.
	Authorities []byte
}

// maxAuthorities bounds the size of a file of certificates.
const maxAuthorities = 4 << 20

// NPMSettings reads the settings of the user who runs this process: the
// environment first, then the user's file, then the machine's.
func (p *Provider) NPMSettings() NPMSettings {
	var files []string
	if home, err := os.UserHomeDir(); err == nil {
		files = append(files, filepath.Join(home, ".npmrc"))
	}
	return npmSettings(append(files, "/usr/local/etc/npmrc", "/usr/etc/npmrc", "/etc/npmrc"), os.Getenv)
}

func npmSettings(files []string, env func(string) string) NPMSettings {
	set := map[string]string{}
	for _, f := range files {
		for line := range strings.Lines(readSources(f)) {
			name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
			name = strings.TrimSpace(name)
			if _, known := set[name]; ok && !known {
				set[name] = os.Expand(strings.Trim(strings.TrimSpace(value), `"'`), env)
			}
		}
	}
	get := func(name string, others ...string) string {
		variable := strings.ReplaceAll(name, "-", "_")
		for _, v := range []string{env("npm_config_" + variable), env("NPM_CONFIG_" + strings.ToUpper(variable)), set[name]} {
			if v != "" {
				return v
			}
		}
		for _, other := range others {
			if v := env(other); v != "" {
				return v
			}
		}
		return ""
	}
	s := NPMSettings{Registry: address(get("registry")), Proxy: address(get("proxy", "http_proxy", "HTTP_PROXY")), HTTPSProxy: address(get("https-proxy", "https_proxy", "HTTPS_PROXY"))}
	for _, f := range []string{get("cafile"), env("NODE_EXTRA_CA_CERTS")} {
		info, err := os.Stat(f)
		if err != nil || !info.Mode().IsRegular() || info.Size() > maxAuthorities {
			continue
		}
		if s.Authorities, err = os.ReadFile(f); err == nil {
			break
		}
	}
	return s
}

// address returns an HTTP URL without user and password, or "" for any other text.
func address(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return ""
	}
	u.User = nil
	return u.String()
}
