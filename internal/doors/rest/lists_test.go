package rest_test

import (
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/cove-sh/cove/internal/doors/rest"
)

// bounded are the operations that answer with a list and take no cursor, with the words
// about the bound in their description.
var bounded = map[string]string{
	"list-providers":   "part of the program",
	"list-contexts":    "at most 32",
	"list-windows":     "at most 512",
	"control-window":   "at most 512",
	"get-stats-series": "at most 360",
	"fork-sandbox":     "at most 32",
	"list-nodes":       "One answer has them all",
	"set-env":          "the first 1000",
}

// Every operation that answers with a list takes a limit and a cursor and gives
// the next cursor, or says how long the list may be.
func TestListsHaveCursors(t *testing.T) {
	text, err := rest.OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	type schema struct {
		Ref        string `yaml:"$ref"`
		Type       any
		Properties map[string]any
	}
	var doc struct {
		Components struct{ Schemas map[string]schema }
		Paths      map[string]map[string]struct {
			OperationID string `yaml:"operationId"`
			Description string
			Parameters  []struct{ Name, In, Description string }
			Responses   map[string]struct {
				Content map[string]struct{ Schema schema }
			}
		}
	}
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	lists := 0
	for _, methods := range doc.Paths {
		for _, o := range methods {
			list, next := false, false
			for status, r := range o.Responses {
				for _, c := range r.Content {
					s := c.Schema
					if s.Ref != "" {
						s = doc.Components.Schemas[s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]]
					}
					_, items := s.Properties["items"]
					_, cursor := s.Properties["next_cursor"]
					list = list || strings.HasPrefix(status, "2") && (items || s.Type == "array")
					next = next || cursor
				}
			}
			if !list {
				continue
			}
			lists++
			var says []string
			for _, p := range o.Parameters {
				if p.In == "query" && (p.Name == "limit" || p.Name == "cursor") {
					says = append(says, p.Name)
				}
				if p.Name == "limit" && !strings.Contains(p.Description, "1 to 1000; 100 when absent") {
					t.Errorf("%s: the limit is %q", o.OperationID, p.Description)
				}
			}
			slices.Sort(says)
			paged := next && slices.Equal(says, []string{"cursor", "limit"})
			bound, has := bounded[o.OperationID]
			delete(bounded, o.OperationID)
			switch {
			case paged == has:
				t.Errorf("%s: paged is %v, and the table of bounds says %q", o.OperationID, paged, bound)
			case has && !strings.Contains(o.Description, bound):
				t.Errorf("%s does not say %q: %s", o.OperationID, bound, o.Description)
			}
		}
	}
	if lists < 20 || len(bounded) > 0 {
		t.Errorf("%d lists were found, and %v not at all", lists, bounded)
	}
}
