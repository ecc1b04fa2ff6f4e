package all_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/all"
)

var (
	// promise is what says that sandboxes reach the network.
	promise = regexp.MustCompile(`(?i)\binternet\b|egress is|reach(es)? the network`)
	// description returns what a schema says about an argument.
	description = regexp.MustCompile(`"description":"((?:[^"\\]|\\.)*)"`)
)

// What models are told about the network must also be true on a server whose default is
// not open: no sentence promises the network without mentioning the server's default.
func TestNoTextPromisesTheNetwork(t *testing.T) {
	found := 0
	for _, d := range all.Dialects() {
		if d.Name() == all.Default { // its texts describe policies
			continue
		}
		texts := []string{d.Server("1").Instructions}
		for _, tool := range d.Tools() {
			texts = append(texts, tool.Def.Description)
			data, err := json.Marshal(tool.Def.InputSchema)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range description.FindAllStringSubmatch(string(data), -1) {
				texts = append(texts, m[1])
			}
		}
		if p, ok := d.(dialect.Prompter); ok {
			for _, prompt := range p.Prompts() {
				res, err := prompt.Get(t.Context(), nil)
				if err != nil {
					continue // it needs arguments
				}
				for _, m := range res.Messages {
					if text, ok := m.Content.(*mcp.TextContent); ok {
						texts = append(texts, text.Text)
					}
				}
			}
		}
		for _, text := range texts {
			for sentence := range strings.SplitSeq(strings.ReplaceAll(text, "\n", ". "), ". ") {
				if !promise.MatchString(sentence) {
					continue
				}
				found++
				if !strings.Contains(sentence, "server") {
					t.Errorf("%s promises the network: %s", d.Name(), sentence)
				}
			}
		}
	}
	if found < 5 {
		t.Errorf("only %d sentences tell of the network; is the pattern out of date?", found)
	}
}
