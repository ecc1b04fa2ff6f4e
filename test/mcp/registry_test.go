package mcp

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

// server.json is what the MCP registry is told; it checks these rules.
func TestRegistryEntry(t *testing.T) {
	data, err := os.ReadFile("../../server.json")
	if err != nil {
		t.Fatal(err)
	}
	var entry struct {
		Schema      string `json:"$schema"`
		Name        string
		Title       string
		Description string
		Version     string
		Repository  struct{ URL, Source string }
		Packages    []struct {
			RegistryType, Identifier string
			Transport                struct{ Type string }
		}
	}
	if err := json.Unmarshal(data, &entry); err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$`).MatchString(entry.Name) || !regexp.MustCompile(`^\d+\.\d+\.\d+$`).MatchString(entry.Version) ||
		len(entry.Description) > 100 || entry.Description == "" || len(entry.Title) > 100 || entry.Repository.Source != "github" ||
		!strings.HasPrefix(entry.Schema, "https://static.modelcontextprotocol.io/schemas/") {
		t.Errorf("%+v", entry)
	}
	for _, p := range entry.Packages {
		if p.RegistryType != "mcpb" || !strings.Contains(p.Identifier, "/v"+entry.Version+"/") || p.Transport.Type != "stdio" {
			t.Errorf("%+v", p)
		}
	}
}
