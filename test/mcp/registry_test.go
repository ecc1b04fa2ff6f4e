package mcp

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

// registryEntry has the members of the registry's schema of 2025-12-11 that
// ours uses; others are refused.
type registryEntry struct {
	Schema      string `json:"$schema"`
	Name        string `json:"name"`
	Title       string `json:"title"`
	Description string `json:"description"`
	Version     string `json:"version"`
	WebsiteURL  string `json:"websiteUrl"`
	Repository  struct {
		URL    string `json:"url"`
		Source string `json:"source"`
	} `json:"repository"`
	Packages []struct {
		RegistryType string `json:"registryType"`
		Identifier   string `json:"identifier"`
		// FileSHA256 is filled in by a release, and must be for the registry.
		FileSHA256 string `json:"fileSha256,omitempty"`
		Transport  struct {
			Type string `json:"type"`
		} `json:"transport"`
		Arguments []struct {
			Type  string `json:"type"`
			Value string `json:"value"`
		} `json:"packageArguments"`
		Environment []struct {
			Name        string `json:"name"`
			Description string `json:"description"`
			Format      string `json:"format"`
			IsRequired  bool   `json:"isRequired"`
			IsSecret    bool   `json:"isSecret"`
		} `json:"environmentVariables"`
	} `json:"packages"`
}

var (
	registryName    = regexp.MustCompile(`^io\.github\.[a-zA-Z0-9-]+/[a-zA-Z0-9._-]+$`)
	registryVersion = regexp.MustCompile(`^\d+\.\d+\.\d+$`)
	registryDigest  = regexp.MustCompile(`^([a-f0-9]{64})?$`)
)

// server.json is the entry for the MCP registry. These are the rules of the registry's
// schema and of its own checks, as far as they need no network.
func TestRegistryEntry(t *testing.T) {
	data, err := os.ReadFile("../../server.json")
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var entry registryEntry
	if err := decoder.Decode(&entry); err != nil {
		t.Fatal(err)
	}
	owner, _, _ := strings.Cut(strings.TrimPrefix(entry.Name, "io.github."), "/")
	for problem, bad := range map[string]bool{
		"schema":                     entry.Schema != "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
		"name":                       !registryName.MatchString(entry.Name) || len(entry.Name) > 200,
		"version":                    !registryVersion.MatchString(entry.Version),
		"title":                      entry.Title == "" || len(entry.Title) > 100,
		"description":                entry.Description == "" || len(entry.Description) > 100,
		"website":                    !strings.HasPrefix(entry.WebsiteURL, "https://"),
		"repository":                 entry.Repository.Source != "github",
		"namespace of another owner": !strings.HasPrefix(entry.Repository.URL, "https://github.com/"+owner+"/"),
		"no package":                 len(entry.Packages) == 0,
	} {
		if bad {
			t.Errorf("%s: %+v", problem, entry)
		}
	}
	for _, p := range entry.Packages {
		// An identifier of this kind is a URL with "mcp" in it.
		if p.RegistryType != "mcpb" || !strings.HasPrefix(p.Identifier, entry.Repository.URL+"/releases/download/v"+entry.Version+"/") ||
			!strings.HasSuffix(p.Identifier, ".mcpb") || p.Transport.Type != "stdio" || !registryDigest.MatchString(p.FileSHA256) {
			t.Errorf("%+v", p)
		}
		if len(p.Arguments) != 1 || p.Arguments[0].Type != "positional" || p.Arguments[0].Value != "mcp" {
			t.Errorf("arguments %+v, want those of cove mcp", p.Arguments)
		}
		for _, v := range p.Environment {
			if v.Name == "" || v.Description == "" || v.Format != "string" || v.IsSecret != (v.Name == "COVE_API_KEY") {
				t.Errorf("%+v", v)
			}
		}
	}
}
