package api

import (
	"context"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
)

// VersionInfo is what GET /v1/version answers.
type VersionInfo struct {
	Version string `json:"version" doc:"The server's version."`
	API     string `json:"api" doc:"The version of this interface: v1."`
}

// Health is what GET /healthz answers.
type Health struct {
	Status string `json:"status" enum:"ok"`
}

// Reply is an answer with a body.
type Reply[T any] struct {
	Body *T
}

// reply answers with what a verb returned.
func reply[T any](ctx context.Context, h *handlers, v *T, err error) (*Reply[T], error) {
	if err != nil {
		return nil, h.fail(ctx, err)
	}
	return &Reply[T]{Body: v}, nil
}

// op describes an operation in short.
func op(method, path, id, tag, summary string) huma.Operation {
	return huma.Operation{
		OperationID: id, Method: method, Path: path, Summary: summary,
		Tags: []string{tag}, MaxBodyBytes: maxBody,
		// Deadlines are the router's.
		BodyReadTimeout: -1,
	}
}

// says gives an operation a description.
func says(o huma.Operation, format string, args ...any) huma.Operation {
	o.Description = fmt.Sprintf(format, args...)
	return o
}

func (h *handlers) registerServer(a huma.API) {
	open := []map[string][]string{}
	health := op(http.MethodGet, "/healthz", "health", "server", "Tell that the server answers")
	health.Security = open
	health = says(health, "Needs no key, and asks nothing of the store or of sandboxes.")
	huma.Register(a, health, func(context.Context, *struct{}) (*Reply[Health], error) {
		return &Reply[Health]{Body: &Health{Status: "ok"}}, nil
	})
	version := op(http.MethodGet, "/v1/version", "version", "server", "Tell the server's version")
	version.Security = open
	version = says(version, "Needs no key. Every answer has the version in the header Cove-Version too.")
	huma.Register(a, version, func(context.Context, *struct{}) (*Reply[VersionInfo], error) {
		return &Reply[VersionInfo]{Body: &VersionInfo{Version: h.version, API: "v1"}}, nil
	})
}
