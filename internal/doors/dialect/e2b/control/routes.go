package control

import (
	"net/http"

	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
)

// handler serves one route. Args are the parts of the path that match the pattern's
// wildcards. It may set headers, but does not write.
type handler func(w http.ResponseWriter, r *http.Request, args []string) (*response, error)

// response is the answer of a handler; a nil body means no body.
type response struct {
	status int
	body   any
}

var noContent = &response{status: http.StatusNoContent}

// withBody decodes the body of a request for a handler.
func withBody[T any](h func(r *http.Request, args []string, body *T) (*response, error)) handler {
	return func(w http.ResponseWriter, r *http.Request, args []string) (*response, error) {
		body := new(T)
		if err := decode(w, r, body); err != nil {
			return nil, err
		}
		return h(r, args, body)
	}
}

// table is all that is served.
func (p *plane) table() []sdkdoor.Route[handler] {
	on := sdkdoor.On[handler]
	return []sdkdoor.Route[handler]{
		on(http.MethodGet, AddressPath, p.address),
		on(http.MethodPost, "/v2/sandboxes", withBody(p.createV2)),
		on(http.MethodPost, "/sandboxes", withBody(p.createV1)),
		on(http.MethodGet, "/v2/sandboxes", p.list),
		on(http.MethodGet, "/sandboxes", p.listV1),
		on(http.MethodGet, "/sandboxes/metrics", p.metricsOfMany),
		on(http.MethodGet, "/sandboxes/*", p.get),
		on(http.MethodDelete, "/sandboxes/*", p.kill),
		on(http.MethodPost, "/v2/sandboxes/*/connect", withBody(p.connect)),
		on(http.MethodPost, "/sandboxes/*/connect", withBody(p.connect)),
		on(http.MethodPost, "/sandboxes/*/resume", withBody(p.resume)),
		on(http.MethodPost, "/sandboxes/*/pause", withBody(p.pause)),
		on(http.MethodPost, "/sandboxes/*/timeout", withBody(p.setTimeout)),
		on(http.MethodPost, "/sandboxes/*/refreshes", withBody(p.refresh)),
		on(http.MethodPut, "/sandboxes/*/network", withBody(p.setNetwork)),
		on(http.MethodPost, "/sandboxes/*/fork", withBody(p.fork)),
		on(http.MethodPost, "/sandboxes/*/snapshots", withBody(p.createSnapshot)),
		on(http.MethodGet, "/snapshots", p.listSnapshots),
		on(http.MethodGet, "/sandboxes/*/metrics", p.metrics),
		on(http.MethodGet, "/sandboxes/*/logs", p.logsV1),
		on(http.MethodGet, "/v2/sandboxes/*/logs", p.logs),
		on(http.MethodGet, "/templates", p.listTemplates),
		on(http.MethodGet, "/v2/templates", p.listTemplates),
		on(http.MethodGet, "/templates/aliases/*", p.alias),
		on(http.MethodPost, "/v3/templates", withBody(p.announce)),
		on(http.MethodPost, "/v2/templates", withBody(p.announce)),
		on(http.MethodGet, "/templates/*/files/*", p.uploadLink),
		on(http.MethodPost, "/v2/templates/*/builds/*", withBody(p.startBuild)),
		on(http.MethodGet, "/templates/*/builds/*/status", p.buildStatus),
		on(http.MethodPost, "/templates/tags", withBody(p.assignTags)),
		on(http.MethodDelete, "/templates/tags", withBody(p.removeTags)),
		on(http.MethodGet, "/templates/*/tags", p.listTags),
		on(http.MethodPatch, "/v2/templates/*", withBody(p.publish)),
		on(http.MethodDelete, "/templates/*", p.deleteTemplate),
		on(http.MethodGet, "/secrets", p.listSecrets),
		on(http.MethodPost, "/secrets", withBody(p.createSecret)),
		on(http.MethodGet, "/secrets/*", p.getSecret),
		on(http.MethodPost, "/secrets/*", withBody(p.updateSecret)),
		on(http.MethodDelete, "/secrets/*", p.deleteSecret),
		on(http.MethodGet, "/volumes", p.listVolumes),
		on(http.MethodPost, "/volumes", withBody(p.createVolume)),
		on(http.MethodGet, "/volumes/*", p.getVolume),
		on(http.MethodDelete, "/volumes/*", p.deleteVolume),
	}
}
