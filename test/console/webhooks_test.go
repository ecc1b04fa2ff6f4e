package console

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// listener is a server that answers webhooks by their paths: some it takes, some it
// refuses for now, and one for ever.
func listener(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(map[string]int{"/takes": http.StatusNoContent, "/busy": http.StatusServiceUnavailable, "/gone": http.StatusGone}[r.URL.Path])
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// webhooks shows webhooks in each of their states, and the end of a pending one.
func webhooks(p *tab, d *covetest.Daemon) {
	t := p.t
	p.visit("/webhooks")
	p.sees("No job has a webhook")
	p.accessible("no webhooks")
	s := d.Create(t, sandbox.CreateRequest{Name: "nightly-build-of-everything"})
	url := listener(t)
	tell := func(path, shell string) {
		t.Helper()
		if _, err := d.Client.Exec(t.Context(), s.ID, sandbox.ExecRequest{Shell: shell, Background: true, Webhook: &sandbox.Webhook{URL: url + path}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	row := func(path string) string {
		return `[...document.querySelectorAll("main tbody tr")].find((e) => [...e.querySelectorAll(".address bdi")].some((c) => c.innerText === ` + quote(url+path) + `))?.innerText`
	}
	tell("/takes", "true")
	tell("/busy", "false")
	tell("/gone", "true")
	tell("/takes?later", "until [ -e /tmp/finished ]; do sleep 0.1; done")
	p.click("List again")
	p.waitFor(row("/takes") + `?.includes("delivered")`)
	p.waitFor(row("/busy") + `?.includes("pending")`)
	p.waitFor(row("/busy") + `.includes("503") && ` + row("/busy") + `.includes("in ")`)
	p.waitFor(row("/gone") + `?.includes("failed") && ` + row("/gone") + `.includes("410")`)
	p.waitFor(row("/takes?later") + `?.includes("waiting")`)
	p.look("light", 1280, 720)
	p.accessible("webhooks")
	p.picture("webhooks")
	p.look("dark", 1440, 860)
	p.accessible("webhooks, dark")
	p.look("light", 390, 844)
	p.fits("webhooks")
	p.look("light", 1440, 860)

	// The page polls open webhooks by itself.
	d.Sh(t, s.ID, "touch /tmp/finished")
	p.waitFor(row("/takes?later") + `?.includes("delivered")`)
	p.fill("Whose jobs", s.ID)
	p.waitFor(`location.search.includes("` + s.ID + `") && document.querySelectorAll("main tbody tr").length === 4`)
	p.visit("/s/" + s.ID + "/jobs")
	p.sees("Webhooks")
	p.waitFor(row("/gone") + `?.includes("failed")`)
}
