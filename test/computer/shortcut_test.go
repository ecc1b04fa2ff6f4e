package computer

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// addresses is how many addresses are typed: without a wait for the location
// bar, one in some is lost.
const addresses = 15

// TestSoakTextAfterShortcut types addresses right after the keys that move the
// keyboard to the location bar: Chromium asks the page about these first, and
// gives the bar the keyboard when the page has answered.
// In "make test", TestComputer, which fills in a form, stands for it.
func TestSoakTextAfterShortcut(t *testing.T) {
	d := covetest.Start(t, covetest.Options{})
	buildComputer(t, d)
	c := create(t, d)
	c.serve()
	c.open("http://127.0.0.1:8000/")
	c.await("the page", pageColor, screenWidth*screenHeight/2)
	for i := range addresses {
		// The addresses differ a lot: the location bar completes typed text from
		// earlier addresses, and on a busy machine takes a similar one.
		path := fmt.Sprintf("/%x", sha256.Sum256([]byte{byte(i)}))[:9]
		c.do(sandbox.Input{Type: sandbox.InputKey, Keys: []string{"ctrl+l"}}, sandbox.Input{Type: sandbox.InputText, Text: "127.0.0.1:8000" + path + "\n"})
		if !covetest.Eventually(patience, func() bool { return strings.Contains(c.log(), "GET /shown"+path+"\n") }) {
			t.Fatalf("address %d of %d was not shown; the page's log:\n%s", i+1, addresses, c.log())
		}
	}
}
