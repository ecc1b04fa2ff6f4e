package all_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/doors/dialect/all"
)

var (
	jsonBlock  = regexp.MustCompile("(?s)```json\n(.*?)```")
	dialectArg = regexp.MustCompile(`(?:--dialect(?:",)? "?|:7777/mcp/|dialect-port )([a-z0-9@.]+)`)
)

// What people copy from the page is JSON, and names dialects that there are.
func TestClientsPage(t *testing.T) {
	data, err := os.ReadFile("../../../../docs/clients.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(data)
	for _, m := range jsonBlock.FindAllStringSubmatch(page, -1) {
		dec := json.NewDecoder(strings.NewReader(m[1]))
		for dec.More() {
			if err := dec.Decode(new(map[string]any)); err != nil {
				t.Errorf("%v in\n%s", err, m[1])
				break
			}
		}
	}
	named := map[string]bool{all.Default: true}
	for _, m := range dialectArg.FindAllStringSubmatch(page, -1) {
		if _, err := all.Find(m[1]); err != nil {
			t.Errorf("%s: %v", m[0], err)
		}
		named[m[1]] = true
	}
	for _, d := range all.Dialects() {
		if !named[d.Name()] {
			t.Errorf("the page does not tell of %s", d.Name())
		}
	}
}
