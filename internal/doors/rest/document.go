package rest

import (
	"net/http"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cove-sh/cove/sandbox"
)

// described returns the full description of the interface. Requests are checked against
// another one, whose rules are laxer if the service checks them.
func described() *huma.OpenAPI {
	_, doc := build(Config{})
	describe(doc.OpenAPI())
	return doc.OpenAPI()
}

// OpenAPI returns the description of the interface, in YAML.
func OpenAPI() ([]byte, error) { return described().YAML() }

// serveDocument serves the description in OpenAPI 3.1 and 3.0. Each is made at its
// first request.
func serveDocument(mux *http.ServeMux) {
	for name, form := range map[string]struct {
		contentType string
		make        func(*huma.OpenAPI) ([]byte, error)
	}{
		"openapi.yaml":     {"application/yaml", (*huma.OpenAPI).YAML},
		"openapi.json":     {"application/openapi+json", (*huma.OpenAPI).MarshalJSON},
		"openapi-3.0.yaml": {"application/yaml", (*huma.OpenAPI).DowngradeYAML},
		"openapi-3.0.json": {"application/openapi+json", (*huma.OpenAPI).Downgrade},
	} {
		document := sync.OnceValues(func() ([]byte, error) { return form.make(described()) })
		mux.HandleFunc("GET /v1/"+name, func(w http.ResponseWriter, _ *http.Request) {
			data, err := document()
			if err != nil {
				WriteError(w, sandbox.Wrap(sandbox.CodeInternal, err, "the description of the interface cannot be made"))
				return
			}
			w.Header().Set("Content-Type", form.contentType)
			_, _ = w.Write(data) // the client may be gone
		})
	}
}
