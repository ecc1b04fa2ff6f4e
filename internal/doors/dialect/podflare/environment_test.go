package podflare

import "testing"

func TestEnvironment(t *testing.T) {
	for name, tt := range map[string]struct {
		env         map[string]string
		server, key string
	}{
		"none":        {nil, "", ""},
		"seed":        {map[string]string{"PODFLARE_HOST": "http://127.0.0.1:7070", "PODFLARE_API_KEY": "pk_live_1"}, "http://127.0.0.1:7070", "pk_live_1"},
		"newer name":  {map[string]string{"PODFLARE_HOSTD_URL": "https://cove.example.com"}, "https://cove.example.com", ""},
		"both":        {map[string]string{"PODFLARE_HOST": "http://a", "PODFLARE_HOSTD_URL": "http://b"}, "http://a", ""},
		"the product": {map[string]string{"PODFLARE_HOST": "https://api.podflare.dev", "PODFLARE_API_KEY": "k"}, "", "k"},
		"its new one": {map[string]string{"PODFLARE_HOSTD_URL": "https://API.Podflare.ai/"}, "", ""},
		"another":     {map[string]string{"PODFLARE_HOST": "https://notpodflare.ai"}, "https://notpodflare.ai", ""},
	} {
		t.Run(name, func(t *testing.T) {
			server, key := New().Environment(func(n string) string { return tt.env[n] })
			if server != tt.server || key != tt.key {
				t.Errorf("%q, %q; want %q, %q", server, key, tt.server, tt.key)
			}
		})
	}
}
