package network

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/covetest/internet"
	"github.com/cove-sh/cove/sandbox"
)

// askAll is a policy that asks about everything.
var askAll = sandbox.NetworkPolicy{Preset: sandbox.NetworkNone, Rules: []sandbox.NetworkRule{{Action: sandbox.NetworkAsk, To: "*"}}}

// openQuestions waits until a sandbox has n open questions, and returns them.
func openQuestions(t *testing.T, d *covetest.Daemon, id string, n int) []sandbox.Approval {
	t.Helper()
	var items []sandbox.Approval
	if !covetest.Eventually(30*time.Second, func() bool {
		list, err := d.Client.ListApprovals(t.Context(), sandbox.ListApprovalsRequest{Sandbox: id})
		if err != nil {
			t.Fatal(err)
		}
		items = list.Items
		return len(items) == n
	}) {
		t.Fatalf("%d questions are open, want %d: %+v", len(items), n, items)
	}
	return items
}

// ending returns the exit code of a command that runs in the background.
func ending(t *testing.T, d *covetest.Daemon, id string, job *sandbox.Job) int {
	t.Helper()
	job, err := d.Client.Attach(t.Context(), id, job.ID, sandbox.AttachRequest{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return job.ExitCode
}

// begin runs a shell line in the background.
func begin(t *testing.T, d *covetest.Daemon, id, line string) *sandbox.Job {
	t.Helper()
	job, err := d.Client.Exec(t.Context(), id, sandbox.ExecRequest{Shell: line, Background: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// answers answers a question.
func answers(t *testing.T, d *covetest.Daemon, id string, req sandbox.AnswerApprovalRequest) {
	t.Helper()
	if _, err := d.Client.AnswerApproval(t.Context(), id, req); err != nil {
		t.Fatal(err)
	}
}

// slowly is a command line that asks for a URL and has time.
func slowly(url string) string { return "curl -fsS --max-time 100 '" + url + "'" }

// A connection waits until somebody has allowed it, and then continues. Nothing was sent
// before: no byte, and no DNS question for its name. The answer allows only what was
// asked, and nothing in a fork.
func TestRealAsk(t *testing.T) {
	shared(t, func(t *testing.T, d *covetest.Daemon) {
		n := internet.Here(t)
		n.SetName("first.ask.test", netip.MustParseAddr("203.0.113.10"))
		n.SetName("second.ask.test", netip.MustParseAddr("203.0.113.10"))
		id := create(t, d, askAll)
		visits := n.Visits("tcp 203.0.113.10:80")
		job := begin(t, d, id, slowly("http://first.ask.test/"))
		q := openQuestions(t, d, id, 1)[0]
		if want := (sandbox.ApprovalSubject{Protocol: "tcp", Host: "first.ask.test", Port: 80}); q.ApprovalSubject != want || q.SandboxID != id {
			t.Errorf("asked about %+v, want %+v", q, want)
		}
		if asked, now := n.Asked("ask.test"), n.Visits("tcp 203.0.113.10:80"); len(asked) > 0 || now != visits {
			t.Errorf("before the answer, %q were looked up and %d connections made", asked, now-visits)
		}
		answers(t, d, q.ID, sandbox.AnswerApprovalRequest{Allow: true, Scope: sandbox.ApproveSandbox})
		if code := ending(t, d, id, job); code != 0 {
			t.Errorf("what was allowed ends with %d", code)
		}
		works(t, d, id, slowly("http://first.ask.test/"))
		// Another name of the same server, and its address, are other questions.
		for url, subject := range map[string]sandbox.ApprovalSubject{
			"http://second.ask.test/":     {Protocol: "tcp", Host: "second.ask.test", Port: 80},
			"http://203.0.113.10/":        {Protocol: "tcp", Address: "203.0.113.10", Port: 80},
			"http://first.ask.test:8080/": {Protocol: "tcp", Host: "first.ask.test", Port: 8080},
		} {
			job := begin(t, d, id, slowly(url))
			q := openQuestions(t, d, id, 1)[0]
			if q.ApprovalSubject != subject {
				t.Errorf("%s is asked about as %+v", url, q.ApprovalSubject)
			}
			answers(t, d, q.ID, sandbox.AnswerApprovalRequest{})
			if code := ending(t, d, id, job); code == 0 {
				t.Errorf("%s was refused, and worked", url)
			}
		}
		if asked := n.Asked("ask.test"); len(asked) != 1 {
			t.Errorf("looked up were %q", asked)
		}
		// What holds goes through a pause, and not into a fork.
		if _, err := d.Client.Pause(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		works(t, d, id, slowly("http://first.ask.test/"))
		forks, err := d.Client.Fork(t.Context(), id, sandbox.ForkRequest{Count: 1})
		if err != nil {
			t.Fatal(err)
		}
		child := forks.Items[0].ID
		job = begin(t, d, child, slowly("http://first.ask.test/"))
		q = openQuestions(t, d, child, 1)[0]
		answers(t, d, q.ID, sandbox.AnswerApprovalRequest{Scope: sandbox.ApproveSandbox})
		if code := ending(t, d, child, job); code == 0 {
			t.Error("a fork goes on by its parent's answer")
		}
		fails(t, d, child, slowly("http://first.ask.test/"))
		log, err := d.Client.Audit(t.Context(), sandbox.AuditRequest{SandboxID: id})
		if err != nil {
			t.Fatal(err)
		}
		said := map[string]int{}
		for _, e := range log.Items {
			said[e.Action]++
		}
		if said["approval.ask"] != 4 || said["approval.answer"] != 4 {
			t.Errorf("the audit record has %v", said)
		}
	})
}

// The daemon dies while a connection waits: it waits on, the next daemon asks the same
// question, and its answer counts. Without an answer it is refused when its time is over. In
// "make test", TestApprovalOutlivesTheDaemon of package service and TestQuestionIsNotAnswered
// of package egress stand for it.
func TestRealMoreAskOutlivesTheDaemon(t *testing.T) {
	own(t, func(t *testing.T, d *covetest.Daemon) {
		n := internet.Here(t)
		id := create(t, d, askAll)
		short := askAll
		short.AskTimeoutSeconds = 15
		late := create(t, d, short)
		before := n.Visits("tcp 198.51.100.10:80")
		begin(t, d, id, "curl -fsS --max-time 100 http://example.com/ > /tmp/out; echo $? > /tmp/code")
		begin(t, d, late, "curl -fsS --max-time 100 http://example.com/ > /tmp/out; echo $? > /tmp/code")
		openQuestions(t, d, late, 1)
		q := openQuestions(t, d, id, 1)[0]
		d.Kill()
		if err := d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		again := openQuestions(t, d, id, 1)[0]
		if again.ID != q.ID || again.ApprovalSubject != q.ApprovalSubject {
			t.Errorf("the next daemon asks %+v, want %+v", again, q)
		}
		openQuestions(t, d, late, 0)
		if code := works(t, d, late, "for i in $(seq 500); do [ -s /tmp/code ] && break; sleep 0.02; done; cat /tmp/code"); code == "0" || code == "" {
			t.Errorf("what nobody had answered ended with %q", code)
		}
		if now := n.Visits("tcp 198.51.100.10:80"); now != before {
			t.Errorf("%d connections were made before an answer", now-before)
		}
		answers(t, d, q.ID, sandbox.AnswerApprovalRequest{Allow: true})
		if code := works(t, d, id, "for i in $(seq 500); do [ -s /tmp/code ] && break; sleep 0.02; done; cat /tmp/code"); code != "0" {
			t.Errorf("what was allowed after the daemon's death ended with %q", code)
		}
	})
}

// Attack: code asks about a thousand names, to hide the one that matters or to have each
// name looked up.
func TestRealAskFlood(t *testing.T) {
	shared(t, func(t *testing.T, d *covetest.Daemon) {
		n := internet.Here(t)
		id := create(t, d, askAll)
		flood := begin(t, d, id, python(`
def one(i):
    try:
        s = socket.create_connection(("n%d.flood.test" % i, 80), 60)
        s.sendall(b"GET / HTTP/1.1\r\nHost: n%d.flood.test\r\n\r\n" % i); s.recv(10)
    except OSError: pass
for i in range(1000): threading.Thread(target=one, args=(i,), daemon=True).start()
time.sleep(300)`))
		open := openQuestions(t, d, id, sandbox.MaxOpenApprovals)
		if asked := n.Asked("flood.test"); len(asked) > 0 {
			t.Errorf("looked up were %q", asked)
		}
		for _, q := range open {
			if !strings.HasSuffix(q.Host, ".flood.test") {
				t.Errorf("asked about %+v", q)
			}
		}
		if _, err := d.Client.SignalJob(t.Context(), id, flood.ID, "KILL", 0); err != nil {
			t.Fatal(err)
		}
		openQuestions(t, d, id, 0) // the connections are gone, and so are the questions
	})
}

// A request that would carry a secret waits until somebody has allowed that: neither the value
// nor anything else of it has left before. An answer is for the secret at that host, and does
// not go into a fork; the daemon's death allows nothing. In "make test", TestRealAsk,
// TestAskForSecret of package egress, TestApprovalOfASecret of package service and
// TestAskBeforeUse of package intercept stand for it.
func TestRealMoreAskForASecret(t *testing.T) {
	own(t, func(t *testing.T, d *covetest.Daemon) {
		n := internet.Here(t)
		const value = "value-of-a-secret-0123456789"
		for _, name := range []string{"api", "other"} {
			if _, err := d.Client.CreateSecret(t.Context(), sandbox.CreateSecretRequest{
				Name: name, Value: sandbox.NewSecretValue(value + name), Hosts: []string{"api.example.com"}, Auth: &sandbox.SecretAuth{Type: "header", Prefix: "Bearer "},
			}); err != nil {
				t.Fatal(err)
			}
		}
		policy := sandbox.NetworkPolicy{Rules: []sandbox.NetworkRule{{Action: sandbox.NetworkAsk, To: "secret:api"}}}
		id := d.Create(t, sandbox.CreateRequest{Network: &policy, Secrets: map[string]string{"TOKEN": "api", "OTHER": "other"}}).ID
		use := func(env, path string) string {
			return `curl -fsS --max-time 100 -H "Authorization: Bearer $` + env + `" https://api.example.com` + path
		}
		subject := sandbox.ApprovalSubject{Protocol: "tcp", Host: "api.example.com", Port: 443, Secret: "api"}
		// What carries no secret, or another, is not asked about.
		works(t, d, id, "curl -fsS --max-time 100 https://api.example.com/none")
		works(t, d, id, use("OTHER", "/other"))
		before := n.Visits("tcp 198.51.100.11:443")
		job := begin(t, d, id, use("TOKEN", "/once"))
		q := openQuestions(t, d, id, 1)[0]
		if q.ApprovalSubject != subject {
			t.Errorf("asked about %+v, want %+v", q.ApprovalSubject, subject)
		}
		if now := n.Visits("tcp 198.51.100.11:443"); now != before {
			t.Errorf("before the answer, %d connections were made", now-before)
		}
		// The daemon dies, and the next one asks the same.
		d.Kill()
		if err := d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if again := openQuestions(t, d, id, 1)[0]; again.ID != q.ID || again.ApprovalSubject != subject {
			t.Errorf("the next daemon asks %+v", again)
		}
		answers(t, d, q.ID, sandbox.AnswerApprovalRequest{Allow: true})
		if code := ending(t, d, id, job); code != 0 {
			t.Errorf("what was allowed ends with %d", code)
		}
		if got := n.Request("/once").Header["Authorization"]; len(got) != 1 || got[0] != "Bearer "+value+"api" {
			t.Errorf("the server got %q", got)
		}
		job = begin(t, d, id, use("TOKEN", "/refused"))
		answers(t, d, openQuestions(t, d, id, 1)[0].ID, sandbox.AnswerApprovalRequest{})
		if code := ending(t, d, id, job); code == 0 {
			t.Error("what was refused worked")
		}
		job = begin(t, d, id, use("TOKEN", "/for-the-sandbox"))
		answers(t, d, openQuestions(t, d, id, 1)[0].ID, sandbox.AnswerApprovalRequest{Allow: true, Scope: sandbox.ApproveSandbox})
		if code := ending(t, d, id, job); code != 0 {
			t.Errorf("what was allowed ends with %d", code)
		}
		works(t, d, id, use("TOKEN", "/again"))
		if _, err := d.Client.Pause(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		works(t, d, id, use("TOKEN", "/after-a-pause"))
		forks, err := d.Client.Fork(t.Context(), id, sandbox.ForkRequest{Count: 1})
		if err != nil {
			t.Fatal(err)
		}
		child := forks.Items[0].ID
		job = begin(t, d, child, use("TOKEN", "/of-a-fork"))
		answers(t, d, openQuestions(t, d, child, 1)[0].ID, sandbox.AnswerApprovalRequest{})
		if code := ending(t, d, child, job); code == 0 {
			t.Error("a fork goes on by its parent's answer")
		}
		for _, path := range []string{"/refused", "/of-a-fork"} {
			if len(n.Request(path).Header) > 0 {
				t.Errorf("the request for %s has left", path)
			}
		}
		log, err := d.Client.Audit(t.Context(), sandbox.AuditRequest{SandboxID: id})
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, e := range log.Items {
			found = found || e.Action == "approval.ask" && strings.Contains(e.Detail, "secret api for tcp api.example.com:443")
			if strings.Contains(e.Detail, value) {
				t.Errorf("the audit record has the value: %+v", e)
			}
		}
		if !found {
			t.Errorf("the audit record says nothing of the secret: %+v", log.Items)
		}
	})
}
