package console

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"github.com/cove-sh/cove/internal/testing/covetest"
)

// largeFile is the size of a file, in bytes, that a page must not hold.
const largeFile = 64 << 20

// downloads saves files and folders: they are written to the disk and not displayed,
// under safe names, and a sandbox's files are never shown as pages.
func downloads(p *tab, d *covetest.Daemon, id string) {
	dir := p.t.TempDir()
	p.run(chromedp.ActionFunc(func(ctx context.Context) error {
		info, err := target.GetTargetInfo().Do(ctx)
		if err != nil {
			return err
		}
		whole := cdp.WithExecutor(ctx, chromedp.FromContext(ctx).Browser)
		return cdpbrowser.SetDownloadBehavior(cdpbrowser.SetDownloadBehaviorBehaviorAllow).WithDownloadPath(dir).WithBrowserContextID(info.BrowserContextID).Do(whole)
	}))
	d.Sh(p.t, id, `mkdir -p saved/deep; cd saved; truncate -s `+fmt.Sprint(largeFile)+` large.bin; echo '<script>window.owned=1</script>' > page.html; echo deep > deep/file; touch "$(printf 'a\342\200\256gnp.exe')"`)
	came := func(name string, size int64) {
		p.t.Helper()
		if !covetest.Eventually(patience, func() bool {
			info, err := os.Stat(filepath.Join(dir, name))
			return err == nil && info.Size() >= size
		}) {
			all, err := os.ReadDir(dir)
			p.t.Fatalf("%s does not come: there are %v, %v", name, all, err)
		}
	}
	p.visit("/s/" + id + "/files")
	p.fill("Directory", "/workspace/saved")
	p.eval(`document.querySelector("[aria-label=Directory]").form.requestSubmit()`, nil)
	p.choose("large.bin")
	p.sees("It is too large to be shown")
	before := p.heap()
	p.click("Download")
	came("large.bin", largeFile)
	if info, err := os.Stat(filepath.Join(dir, "large.bin")); err != nil || info.Size() != largeFile {
		p.t.Errorf("the file that came is %v, %v", info, err)
	}
	var read float64
	p.eval(`performance.getEntriesByType("resource").filter((e) => e.name.includes("/files/content")).reduce((n, e) => n + e.decodedBodySize, 0)`, &read)
	if grown := p.heap() - before; grown > 16<<20 || read > 16<<20 {
		p.t.Errorf("to save %d bytes the page read %.0f, and keeps %d more", largeFile, read, grown)
	}

	p.click("More actions on files")
	p.click("Download /workspace/saved")
	came("saved.zip", 1)
	p.choose("deep")
	p.click("Download")
	came("deep.zip", 1)
	p.choose(`a\u202egnp.exe`)
	p.click("Download")
	came("a_gnp.exe", 0)

	// Neither by its button nor by its address does a page of a sandbox come to be one of
	// the console's origin.
	p.choose("page.html")
	p.click("Download")
	came("page.html", 1)
	if err := os.Remove(filepath.Join(dir, "page.html")); err != nil {
		p.t.Fatal(err)
	}
	p.eval(`location.assign("/v1/sandboxes/`+id+`/files/content?path=%2Fworkspace%2Fsaved%2Fpage.html")`, nil)
	came("page.html", 1)
	var at string
	if p.eval(`location.pathname`, &at); !strings.HasPrefix(at, "/console/") {
		p.t.Errorf("the tab shows %s", at)
	}
	notOwned(p, "a page of a sandbox")

	// The page shows a refusal.
	d.Sh(p.t, id, "rm saved/page.html")
	p.click("Download")
	p.waitFor(`[...document.querySelectorAll(".toast.error")].some((e) => e.innerText.includes("page.html"))`)
	d.Sh(p.t, id, "rm -r saved")
}
