package image

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// NPMSettings are how this machine's own npm reaches its registry, without
// anything that proves who asks.
type NPMSettings struct {
	// Registry, Proxy and HTTPSProxy are addresses; "" is npm's own default.
	Registry, Proxy, HTTPSProxy string
	// Authorities are certificates in PEM that are trusted besides the usual ones.
	Authorities []byte
}

// maxAuthorities bounds a file of certificates.
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
	said := map[string]string{}
	for _, f := range files {
		for line := range strings.Lines(readSources(f)) {
			name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
			name = strings.TrimSpace(name)
			if _, known := said[name]; ok && !known {
				said[name] = os.Expand(strings.Trim(strings.TrimSpace(value), `"'`), env)
			}
		}
	}
	get := func(name string, others ...string) string {
		variable := strings.ReplaceAll(name, "-", "_")
		for _, v := range []string{env("npm_config_" + variable), env("NPM_CONFIG_" + strings.ToUpper(variable)), said[name]} {
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

// address is a URL of HTTP without the user and password that it may have, or "".
func address(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return ""
	}
	u.User = nil
	return u.String()
}
