package rest_test

import (
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/internal/doors/rest"
	"github.com/cove-sh/cove/sandbox"
)

// The scope of each operation in the table is the one that the service requires.
func TestScopesAreTheServices(t *testing.T) {
	h := rest.New(rest.Config{Service: newService(t)})
	sockets := []string{operation.OpenTerminal.ID, operation.DialPort.ID} // they look at the protocol first
	for _, o := range rest.Operations() {
		if o.Open || slices.Contains(sockets, o.ID) {
			continue
		}
		body := "{}"
		if o.Method == http.MethodGet || o.Method == http.MethodDelete {
			body = ""
		}
		nobody := sandbox.Caller{KeyID: "key-x", Team: "red", Scopes: []sandbox.Scope{"none"}}
		status, answer := do(t, h, nobody, o.Method+" "+o.Path, "application/json", body)
		refused := status == http.StatusForbidden && strings.Contains(answer, `lacks the scope \"`+string(o.Scope)+`\"`)
		if refused != (o.Scope != "") {
			t.Errorf("%s, which needs %q: %d %s", o.ID, o.Scope, status, answer)
		}
	}
}

// Every verb of the service has its operation, but those of previews' visitors.
func TestEachVerbHasAnOperation(t *testing.T) {
	verbs := map[string]bool{"VisitPreview": true, "DialPreview": true}
	for _, o := range rest.Operations() {
		verbs[o.Verb] = true
	}
	for m := range reflect.TypeFor[sandbox.Service]().Methods() {
		if !verbs[m.Name] {
			t.Errorf("%s has no operation", m.Name)
		}
	}
}
