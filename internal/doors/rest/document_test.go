package rest_test

import (
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/cove-sh/cove/internal/doors/rest"
)

// inGo matches words that mean nothing to readers who do not know the Go packages:
// names of parameters and of exported declarations.
var inGo = regexp.MustCompile(`\b(ctx|sink|nil|[A-Z][a-z]+([A-Z][a-z]+|MS))\b`)

// The document says where a server is, under which license it is, what its
// groups of operations are, and how each operation refuses.
func TestDocumentIsComplete(t *testing.T) {
	text, err := rest.OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Info struct {
			Contact struct{ URL string }
			License struct{ Identifier string }
		}
		Servers []struct{ URL string }
		Tags    []struct{ Name, Description string }
		Paths   map[string]map[string]struct {
			OperationID string `yaml:"operationId"`
			Summary     string
			Description string
			Tags        []string
			Parameters  []struct {
				Ref               string `yaml:"$ref"`
				Name, Description string
			}
			Responses map[string]any
		}
		Components struct {
			Parameters map[string]struct{ Description string }
		}
	}
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Info.Contact.URL == "" || doc.Info.License.Identifier == "" || len(doc.Servers) == 0 || doc.Servers[0].URL == "" {
		t.Errorf("license %q, servers %v", doc.Info.License.Identifier, doc.Servers)
	}
	unused := map[string]bool{}
	for _, tag := range doc.Tags {
		if tag.Description == "" || unused[tag.Name] {
			t.Errorf("the tag %q has no description, or is there twice", tag.Name)
		}
		unused[tag.Name] = true
	}
	defined := len(unused)
	used := map[string]bool{}
	for path, methods := range doc.Paths {
		for method, o := range methods {
			if len(o.Tags) != 1 || !unused[o.Tags[0]] {
				t.Errorf("%s %s has the tags %q, which are not described", method, path, o.Tags)
			} else {
				used[o.Tags[0]] = true
			}
			if o.OperationID == "" || o.Summary == "" || o.Description == "" || o.Responses["4XX"] == nil {
				t.Errorf("%s %s (%s) has no id, no summary, no description, or no response of refusal", method, path, o.OperationID)
			}
			if inGo.MatchString(strings.ReplaceAll(o.Description, "WebSocket", "")) {
				t.Errorf("%s speaks of Go: %s", o.OperationID, o.Description)
			}
			for _, p := range o.Parameters {
				if name, shared := strings.CutPrefix(p.Ref, "#/components/parameters/"); shared {
					p.Name, p.Description = name, doc.Components.Parameters[name].Description
				}
				if p.Description == "" {
					t.Errorf("%s does not say what %s is", o.OperationID, p.Name)
				}
			}
		}
	}
	if len(used) != defined {
		t.Errorf("of %d tags %d are used", defined, len(used))
	}
}
