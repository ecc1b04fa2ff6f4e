package console

import (
	"bytes"
	"compress/gzip"
	"context"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// twoBrowsers has one browser fork, and another see it; a link opens one browser only.
func twoBrowsers(t *testing.T, d *covetest.Daemon, chrome context.Context, parent string) {
	one, other := signIn(t, d, chrome), signIn(t, d, chrome)
	other.visit("/")
	other.waitFor(`!!document.querySelector(".tree-row")`)
	one.visit("/s/" + parent + "/jobs")
	one.click("Fork")
	one.fill("How many", "2")
	one.fill("Name", "seen")
	one.click("Fork")
	one.sees("2 forks of")
	other.sees("seen-0")
	other.sees("seen-1")
	child := sandboxNamed(t, d.Client, func(s sandbox.Sandbox) bool { return s.Name == "seen-1" })
	one.visit("/s/" + child.ID + "/jobs")
	one.click("More actions")
	one.click("Kill…")
	one.click("Kill")
	other.waitFor(`[...document.querySelectorAll(".tree-row.ended")].some((e) => e.innerText.includes("seen-1"))`)
}

func compressed(t *testing.T, data []byte) int {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Len()
}
