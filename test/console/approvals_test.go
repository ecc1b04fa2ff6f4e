package console

import (
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// asks makes a sandbox ask for a URL in the background.
func asks(t *testing.T, d *covetest.Daemon, id, url string) {
	t.Helper()
	if _, err := d.Client.Exec(t.Context(), id, sandbox.ExecRequest{Shell: "curl -fsS --max-time 100 " + url, Background: true}, nil); err != nil {
		t.Fatal(err)
	}
}

// asked returns the open question of a sandbox about a host or an address.
func asked(t *testing.T, d *covetest.Daemon, id, host string) sandbox.Approval {
	t.Helper()
	list, err := d.Client.ListApprovals(t.Context(), sandbox.ListApprovalsRequest{Sandbox: id})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list.Items {
		if a.Host+a.Address == host {
			return a
		}
	}
	t.Fatalf("nothing is asked about %s: %+v", host, list.Items)
	return sandbox.Approval{}
}

// answered fails the test unless a question comes to this state.
func answered(t *testing.T, d *covetest.Daemon, id string, want sandbox.ApprovalState) {
	t.Helper()
	var now *sandbox.Approval
	if !covetest.Eventually(patience, func() bool {
		var err error
		if now, err = d.Client.GetApproval(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		return now.State == want
	}) {
		t.Errorf("the approval is %+v, want %s", now, want)
	}
}

// approvals answers what a sandbox asks, and sees the answers of somebody else.
func approvals(p *tab, d *covetest.Daemon) {
	p.visit("/approvals")
	p.sees("Nothing is asked")
	s := d.Create(p.t, sandbox.CreateRequest{Name: "curious", Network: &sandbox.NetworkPolicy{
		Preset: sandbox.NetworkNone, Rules: []sandbox.NetworkRule{{Action: sandbox.NetworkAsk, To: "*"}},
	}})
	// A click on a question that has just appeared was meant for something else.
	p.clickAtOnce("Refuse tcp packages.example:80")
	asks(p.t, d, s.ID, "http://packages.example/")
	p.sees("the list had just changed")
	first := asked(p.t, d, s.ID, "packages.example")

	// Later questions appear below, and do not move earlier ones.
	asks(p.t, d, s.ID, "https://xn--gthub-n4a.example/login")
	p.sees("tcp xn--gthub-n4a.example:443")
	asks(p.t, d, s.ID, "http://198.51.100.7:8080/")
	p.sees("tcp 198.51.100.7:8080")
	p.sees("may look like those of another name")
	p.waitFor(`document.querySelector("main tbody tr").innerText.includes("packages.example")`)
	p.waitFor(`document.querySelector("nav a[href$='/approvals'] .badge").innerText === "3" && document.title.startsWith("(3) ")`)
	p.waitFor(`document.querySelectorAll(".toast").length === 0`)
	p.accessible("questions")
	p.look("light", 1280, 720)
	p.picture("approvals")
	p.look("light", 390, 844)
	p.fits("the questions")
	p.look("light", 1440, 860)

	p.click("Refuse tcp packages.example:80")
	answered(p.t, d, first.ID, sandbox.ApprovalDenied)
	p.waitFor(`document.querySelectorAll("main tbody tr").length === 2`)
	other := asked(p.t, d, s.ID, "198.51.100.7")
	if _, err := d.Client.AnswerApproval(p.t.Context(), other.ID, sandbox.AnswerApprovalRequest{}); err != nil {
		p.t.Fatal(err)
	}
	p.waitFor(`document.querySelectorAll("main tbody tr").length === 1`)
	if _, err := d.Client.Kill(p.t.Context(), s.ID); err != nil {
		p.t.Fatal(err)
	}
	p.sees("Nothing is asked")
}
