package native

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
)

// TestConsoleForms checks each call of a tool that the console shows against the existing tools
// and their schemas. The file is kept current by the console's own tests.
func TestConsoleForms(t *testing.T) {
	data, err := os.ReadFile("../../../../console/src/lib/testdata/forms.json")
	if err != nil {
		t.Fatal(err)
	}
	var forms []struct {
		Verb string
		MCP  *struct {
			Name      string
			Arguments map[string]any
		}
	}
	if err := json.Unmarshal(data, &forms); err != nil {
		t.Fatal(err)
	}
	schemas := map[string]*jsonschema.Resolved{}
	for _, tool := range New().Tools() {
		var schema jsonschema.Schema
		text, err := json.Marshal(tool.Def.InputSchema)
		if err == nil {
			err = json.Unmarshal(text, &schema)
		}
		if err != nil {
			t.Fatal(err)
		}
		if schemas[tool.Def.Name], err = schema.Resolve(nil); err != nil {
			t.Fatal(err)
		}
	}
	read := 0
	for _, f := range forms {
		if f.MCP == nil {
			continue
		}
		read++
		schema, ok := schemas[f.MCP.Name]
		if !ok {
			t.Errorf("%s: there is no tool %s", f.Verb, f.MCP.Name)
			continue
		}
		if err := schema.Validate(f.MCP.Arguments); err != nil {
			t.Errorf("%s: %s %v: %v", f.Verb, f.MCP.Name, f.MCP.Arguments, err)
		}
	}
	if read < 40 {
		t.Errorf("the console writes %d calls of tools, which is not all of them", read)
	}
}
