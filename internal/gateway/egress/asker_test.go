package egress

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cove-sh/cove/sandbox"
)

// askingInternet is an internet in which approvals are possible: good.example is at
// publicAddr and at otherAddr, and other.example at publicAddr too.
func askingInternet(t *testing.T, policy sandbox.NetworkPolicy, change ...func(*Config, *Network)) (*internet, <-chan struct{}) {
	t.Helper()
	changed := make(chan struct{}, 1)
	in := newInternet(t, policy, append(change, func(c *Config, _ *Network) {
		c.Asked = func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	})...)
	in.address("good.example", publicAddr)
	in.address("other.example", publicAddr)
	in.secureWeb(publicAddr+":443", "good")
	in.web(publicAddr+":80", "good")
	return in, changed
}

// question waits until there are n open questions and returns the newest, if any.
func (in *internet) question(changed <-chan struct{}, n int) Question {
	in.t.Helper()
	end := time.After(patience)
	for {
		if all := in.g.Questions(); len(all) == n {
			return append(all, Question{})[max(0, n-1)]
		}
		select {
		case <-changed:
		case <-end:
			in.t.Fatalf("there are %d questions, want %d: %+v", len(in.g.Questions()), n, in.g.Questions())
		}
	}
}

// quiet fails if anything has left the gateway.
func (in *internet) quiet(when string) {
	in.t.Helper()
	if q, d := in.questions(), in.dials(); len(q) > 0 || len(d) > 0 {
		in.t.Errorf("%s, the gateway has looked up %q and dialled %q", when, q, d)
	}
}

// handshake connects to an address under a name, and returns whose certificate it
// received.
func (in *internet) handshake(to, name string) <-chan string {
	got := make(chan string, 1)
	c, err := in.connect(to)
	if err != nil {
		got <- "refused"
		return got
	}
	go func() {
		who, err := reached(c, name)
		if err != nil {
			who = "refused"
		}
		c.Close()
		got <- who
	}()
	return got
}

func TestAskedName(t *testing.T) {
	for _, c := range []struct {
		name  string
		allow bool
		want  string
	}{{"allowed", true, "good"}, {"refused", false, "refused"}} {
		t.Run(c.name, func(t *testing.T) {
			in, changed := askingInternet(t, rules("none", "ask good.example"))
			standIn := in.lookup("good.example")
			if len(standIn) != 1 || !syntheticRange.Contains(netip.MustParseAddr(standIn[0])) {
				t.Fatalf("the name has %v, want an address that stands for it", standIn)
			}
			got := in.handshake(standIn[0]+":443", "good.example")
			q := in.question(changed, 1)
			if want := (Subject{Protocol: "tcp", Host: "good.example", Port: 443}); q.Subject != want || q.Waiting != 1 || !strings.HasPrefix(q.ID, QuestionPrefix) {
				t.Errorf("asked %+v, want %+v", q, want)
			}
			in.quiet("before the answer")
			if err := in.g.AnswerQuestion(q.ID, c.allow); err != nil {
				t.Fatal(err)
			}
			if err := in.g.AnswerQuestion(q.ID, !c.allow); err != ErrNoQuestion {
				t.Errorf("a second answer: %v, want %v", err, ErrNoQuestion)
			}
			if who := <-got; who != c.want {
				t.Errorf("reached %q, want %q", who, c.want)
			}
			if !c.allow {
				in.quiet("after the refusal")
			}
			// The answer applied once: the next connection asks again.
			got = in.handshake(standIn[0]+":443", "good.example")
			again := in.question(changed, 1)
			if again.ID == q.ID {
				t.Error("the next connection asks the same question")
			}
			_ = in.g.AnswerQuestion(again.ID, false)
			<-got
		})
	}
}

func TestQuestionIsNotAnswered(t *testing.T) {
	policy := rules("none", "ask *")
	policy.AskTimeoutSeconds = 1
	in, _ := askingInternet(t, policy)
	got := in.handshake(in.lookup("good.example")[0]+":443", "good.example")
	if who := <-got; who != "refused" {
		t.Errorf("reached %q although nobody had answered", who)
	}
	in.quiet("after the time")
	e := in.blocked(sandbox.MatchDefault)
	if e.Rule != "ask *" || !strings.Contains(e.Reason, "in time") || e.Host != "good.example" {
		t.Errorf("the log says %+v", e)
	}
}

// TestAnswersDoNotWiden checks that an answer for one subject does not apply to similar
// ones.
func TestAnswersDoNotWiden(t *testing.T) {
	held := func(a ...Answer) func(*Config, *Network) { return func(_ *Config, n *Network) { n.Answers = a } }
	byName := Answer{Subject: Subject{Protocol: "tcp", Host: "good.example", Port: 443}, Allow: true}
	byAddr := Answer{Subject: Subject{Protocol: "tcp", Address: netip.MustParseAddr(publicAddr), Port: 443}, Allow: true}
	for _, c := range []struct {
		name    string
		answer  Answer
		to      string // if empty, the address that stands for the name
		host    string
		reaches bool
		asked   string
	}{
		{"the name itself", byName, "", "good.example", true, ""},
		{"another name at the same server", byName, "", "other.example", false, "tcp other.example:443"},
		{"another name to the address of the name", byName, "stand-in of good.example", "other.example", false, "tcp other.example:443"},
		{"the name's address", byName, publicAddr + ":443", "good.example", false, "tcp " + publicAddr + ":443"},
		{"another port of the name", byName, "stand-in:444", "good.example", false, "tcp good.example:444"},
		{"the address itself", byAddr, publicAddr + ":443", "x.example", true, ""},
		{"a name at the address", byAddr, "", "good.example", false, "tcp good.example:443"},
		{"another address", byAddr, otherAddr + ":443", "good.example", false, "tcp " + otherAddr + ":443"},
		{"for another time", Answer{Subject: byName.Subject, Allow: true, Until: time.Now().Add(-time.Second)}, "", "good.example", false, "tcp good.example:443"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in, changed := askingInternet(t, rules("none", "ask *"), held(c.answer))
			in.g.speakWait = patience // the client speaks first
			to := c.to
			switch to {
			case "":
				to = in.lookup(c.host)[0] + ":443"
			case "stand-in:444":
				to = in.lookup(c.host)[0] + ":444"
			case "stand-in of good.example":
				to = in.lookup("good.example")[0] + ":443"
			}
			done := make(chan string, 1)
			go func() { done <- <-in.handshake(to, c.host) }()
			if c.asked != "" {
				q := in.question(changed, 1)
				if q.Subject.String() != c.asked {
					t.Errorf("asked about %s, want %s", q.Subject, c.asked)
				}
				in.quiet("before the answer")
				if err := in.g.AnswerQuestion(q.ID, false); err != nil {
					t.Error(err)
				}
			}
			if who := <-done; (who == "good") != c.reaches {
				t.Errorf("reached %q", who)
			}
			if c.reaches && len(in.g.Questions()) > 0 {
				t.Error("it was asked about all the same")
			}
		})
	}
}

// A name that was allowed may lead to an internal address by the time it is looked up.
func TestAllowedNameThatRebinds(t *testing.T) {
	in, changed := askingInternet(t, rules("none", "ask rebind.example"))
	in.address("rebind.example", "169.254.169.254")
	in.secureWeb("169.254.169.254:443", "metadata")
	got := in.handshake(in.lookup("rebind.example")[0]+":443", "rebind.example")
	if err := in.g.AnswerQuestion(in.question(changed, 1).ID, true); err != nil {
		t.Fatal(err)
	}
	if who := <-got; who != "refused" {
		t.Errorf("reached %q", who)
	}
	in.blocked(sandbox.MatchInternal)
	if d := in.dials(); len(d) > 0 {
		t.Errorf("dialled %q", d)
	}
}

// TestAskedInternalAddress checks that, where internal addresses need an approval, a name
// that was allowed and leads to one needs another, for that address.
func TestAskedInternalAddress(t *testing.T) {
	in, changed := askingInternet(t, rules("none", "ask intra.example", "ask 10.1.2.0/24"))
	in.address("intra.example", "10.1.2.3")
	in.secureWeb("10.1.2.3:443", "intra")
	got := in.handshake(in.lookup("intra.example")[0]+":443", "intra.example")
	first := in.question(changed, 1)
	_ = in.g.AnswerQuestion(first.ID, true)
	for { // until it is the next one
		if q := in.question(changed, 1); q.ID != first.ID {
			if q.Subject.String() != "tcp 10.1.2.3:443" {
				t.Errorf("asked about %s", q.Subject)
			}
			_ = in.g.AnswerQuestion(q.ID, true)
			break
		}
	}
	if who := <-got; who != "intra" {
		t.Errorf("reached %q", who)
	}
}

// Attack: the ClientHello shows no name, and hides one in an encrypted one. An answer is
// for the name that was asked about.
func TestAskedNameIsHidden(t *testing.T) {
	in, _ := askingInternet(t, rules("none", "ask *"))
	in.g.speakWait = patience // the client speaks first
	c := in.mustConnect(in.lookup("good.example")[0] + ":443")
	_, _ = c.Write(withExtension(clientHello(t, &tls.Config{}), extensionECH, make([]byte, 80)))
	if !closedByGateway(c) {
		t.Error("the connection goes on")
	}
	in.blocked(sandbox.MatchProtocol)
	if q := in.g.Questions(); len(q) > 0 {
		t.Errorf("asked %+v", q)
	}
}

// TestAskedAddressThroughAProxy checks that an answer for an address does not apply to
// the address to which the host's proxy resolves its name.
func TestAskedAddressThroughAProxy(t *testing.T) {
	in, changed := askingInternet(t, rules("none", "allow x.example", "ask "+publicAddr, "allow good.example"))
	in.g.speakWait = patience // the client speaks first
	asked := make(chan string, 16)
	addr := proxyServer(t, in, asked)
	var err error
	if in.g.out, err = newHostDialer(in, Proxy{HTTPProxy: "http://" + addr, HTTPSProxy: "http://" + addr}); err != nil {
		t.Fatal(err)
	}
	answer := func() {
		q := in.question(changed, 1)
		if q.Subject.Address != netip.MustParseAddr(publicAddr) {
			t.Errorf("asked about %s", q.Subject)
		}
		if err := in.g.AnswerQuestion(q.ID, true); err != nil {
			t.Error(err)
		}
		in.question(changed, 0)
	}
	got := in.handshake(publicAddr+":443", "good.example")
	answer()
	if who := <-got; who != "good" {
		t.Errorf("reached %q", who)
	}
	if got := <-asked; !strings.HasPrefix(got, "CONNECT "+publicAddr+":443") {
		t.Errorf("the proxy was asked %q", got)
	}
	c := in.mustConnect(publicAddr + ":80")
	go answer()
	if code, body := say(t, c, "GET / HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\n\r\n"); code != 403 || !strings.Contains(body, "connects by name") {
		t.Errorf("plain HTTP: got %d %q", code, body)
	}
	if len(asked) > 0 {
		t.Errorf("the proxy was asked %q", <-asked)
	}
}

func TestManyConnectionsShareOneAnswer(t *testing.T) {
	in, changed := askingInternet(t, rules("none", "ask good.example"))
	to := in.lookup("good.example")[0] + ":443"
	const n = 20
	var got []<-chan string
	for range n {
		got = append(got, in.handshake(to, "good.example"))
	}
	q := in.question(changed, 1)
	for q.Waiting < n {
		<-changed
		q = in.question(changed, 1)
	}
	if err := in.g.AnswerQuestion(q.ID, true); err != nil {
		t.Fatal(err)
	}
	for _, g := range got {
		if who := <-g; who != "good" {
			t.Errorf("reached %q", who)
		}
	}
}

func TestQuestionIsWithdrawn(t *testing.T) {
	in, changed := askingInternet(t, rules("none", "ask good.example"))
	to := in.lookup("good.example")[0] + ":443"
	t.Run("the policy allows", func(t *testing.T) {
		got := in.handshake(to, "good.example")
		in.question(changed, 1)
		in.set(rules("none", "allow good.example"))
		if who := <-got; who != "good" {
			t.Errorf("reached %q", who)
		}
		in.question(changed, 0)
	})
	t.Run("the policy denies", func(t *testing.T) {
		in.set(rules("none", "ask good.example"))
		got := in.handshake(to, "good.example")
		in.question(changed, 1)
		in.set(rules("none"))
		if who := <-got; who != "refused" {
			t.Errorf("reached %q", who)
		}
		in.question(changed, 0)
	})
	t.Run("an unrelated change keeps the question", func(t *testing.T) {
		in.set(rules("none", "ask good.example"))
		got := in.handshake(to, "good.example")
		q := in.question(changed, 1)
		in.set(rules("none", "allow x.example", "ask good.example"))
		if err := in.g.AnswerQuestion(q.ID, true); err != nil {
			t.Fatal(err)
		}
		if who := <-got; who != "good" {
			t.Errorf("reached %q", who)
		}
	})
	t.Run("the program gives up", func(t *testing.T) {
		c := in.mustConnect(to)
		go func() { _, _ = reached(c, "good.example") }()
		in.question(changed, 1)
		c.Close()
		in.question(changed, 0)
	})
	t.Run("an answer that holds", func(t *testing.T) {
		got := in.handshake(to, "good.example")
		q := in.question(changed, 1)
		err := in.g.Set(Network{SandboxID: "sbx_test", Policy: rules("none", "ask good.example"), Answers: []Answer{{Subject: q.Subject, Allow: true}}})
		if err != nil {
			t.Fatal(err)
		}
		if who := <-got; who != "good" {
			t.Errorf("reached %q", who)
		}
		in.question(changed, 0)
	})
}

// TestQuestionAboutSilentPrograms checks that programs that do not speak first, or show no
// name, are asked about by the name of their address.
func TestQuestionAboutSilentPrograms(t *testing.T) {
	in, changed := askingInternet(t, rules("none", "ask good.example"))
	in.g.speakWait = time.Millisecond
	addr := in.lookup("good.example")[0]
	for name, first := range map[string]string{"silent": "", "of no known protocol": "hello\n"} {
		t.Run("given up, "+name, func(t *testing.T) {
			c := in.mustConnect(addr + ":22")
			_, _ = io.WriteString(c, first)
			in.question(changed, 1)
			c.Close()
			in.question(changed, 0)
		})
	}
	t.Run("it speaks late", func(t *testing.T) {
		c := in.mustConnect(addr + ":443")
		q := in.question(changed, 1)
		got := make(chan string, 1)
		go func() { who, _ := reached(c, "good.example"); got <- who }()
		if err := in.g.AnswerQuestion(q.ID, true); err != nil {
			t.Fatal(err)
		}
		if who := <-got; who != "good" {
			t.Errorf("reached %q", who)
		}
	})
}

// TestQuestionAboutRequestWithBody sends a request whose body the plain HTTP server
// does not read while the request waits.
func TestQuestionAboutRequestWithBody(t *testing.T) {
	in, changed := askingInternet(t, rules("none", "ask good.example"))
	const head = "POST / HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\nContent-Length: "
	half := strings.Repeat("half of the body", maxAhead/16)
	for name, body := range map[string]string{"whole": "whole", "half": "ha", "none": ""} {
		t.Run("given up, "+name, func(t *testing.T) {
			c := in.mustConnect(publicAddr + ":80")
			_, _ = io.WriteString(c, head+"5\r\n\r\n"+body)
			in.question(changed, 1)
			c.Close()
			in.question(changed, 0)
		})
	}
	t.Run("what comes meanwhile", func(t *testing.T) {
		c := in.mustConnect(publicAddr + ":80")
		_, _ = io.WriteString(c, head+fmt.Sprint(2*len(half))+"\r\n\r\n"+half[:10])
		q := in.question(changed, 1)
		go func() {
			_, _ = io.WriteString(c, half[10:]+half)
		}()
		if err := in.g.AnswerQuestion(q.ID, true); err != nil {
			t.Fatal(err)
		}
		if code, body := hear(t, bufio.NewReader(c)); code != 200 || !strings.Contains(body, half+half) {
			t.Errorf("got %d with %d bytes", code, len(body))
		}
	})
}

// TestQuestionsAreBounded checks that questions beyond the limit are refused at once.
func TestQuestionsAreBounded(t *testing.T) {
	in, _ := askingInternet(t, rules("none", "ask *"))
	const flood = 1000
	results := make(chan error, flood)
	var wg sync.WaitGroup
	for i := range flood {
		wg.Go(func() {
			f := in.g.begin(t.Context(), "tcp", netip.MustParseAddrPort(publicAddr+":443"))
			if f == nil {
				results <- nil
				return
			}
			defer f.end()
			d := f.consent(t.Context(), Attempt{Protocol: "tcp", Port: 443, Names: []string{fmt.Sprintf("n%d.example", i)}, resolved: true})
			results <- nil
			if d.Allow || d.Ask {
				t.Errorf("a question of the flood: %+v", d)
			}
		})
	}
	for range flood - sandbox.MaxOpenApprovals {
		<-results
	}
	if n := len(in.g.Questions()); n > sandbox.MaxOpenApprovals {
		t.Errorf("%d questions are open", n)
	}
	for _, q := range in.g.Questions() {
		_ = in.g.AnswerQuestion(q.ID, false)
	}
	wg.Wait()
	in.quiet("in a flood of questions")
}

func TestAskedPlainHTTP(t *testing.T) {
	in, changed := askingInternet(t, rules("none", "ask good.example tcp 80"))
	c := in.mustConnect(in.lookup("good.example")[0] + ":80")
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\n\r\n")
	q := in.question(changed, 1)
	in.quiet("before the answer")
	_ = in.g.AnswerQuestion(q.ID, true)
	buf := make([]byte, 12)
	if _, err := c.Read(buf); err != nil || string(buf) != "HTTP/1.1 200" {
		t.Errorf("got %q, %v", buf, err)
	}
}

func TestAskedUDP(t *testing.T) {
	in, changed := askingInternet(t, rules("none", "ask good.example", "ask "+otherAddr))
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = pc.WriteTo(buf[:n], from)
		}
	}()
	in.at("udp", publicAddr+":123", pc.LocalAddr())
	in.at("udp", otherAddr+":123", pc.LocalAddr())
	for _, c := range []struct{ to, subject string }{
		{in.lookup("good.example")[0] + ":123", "udp good.example:123"},
		{otherAddr + ":123", "udp " + otherAddr + ":123"},
	} {
		conn, err := in.flow(c.to)
		if err != nil {
			t.Fatal(err)
		}
		q := in.question(changed, 1)
		if q.Subject.String() != c.subject {
			t.Errorf("asked about %s, want %s", q.Subject, c.subject)
		}
		if d := in.dials(); c.subject[4] == 'g' && len(d) > 0 {
			t.Errorf("dialled %q before the answer", d)
		}
		_ = in.g.AnswerQuestion(q.ID, true)
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if n, err := conn.Read(make([]byte, 10)); n != 1 {
			t.Errorf("%s answers %d bytes, %v", c.subject, n, err)
		}
		conn.Close()
		in.idle()
	}
	if _, err := in.flow(in.lookup("good.example")[0] + ":443"); err == nil {
		t.Error("QUIC is asked about, which hides the name")
	}
}

func TestAskRefusesTrafficThatCannotWait(t *testing.T) {
	in, _ := askingInternet(t, rules("none", "ask *"))
	if err := in.g.Ping(t.Context(), netip.MustParseAddr(publicAddr), []byte("x")); err == nil || !strings.Contains(err.Error(), "does not wait") {
		t.Errorf("ping: %v", err)
	}
	for _, typ := range []dnsmessage.Type{dnsmessage.TypeTXT, dnsmessage.TypeMX, dnsmessage.TypeAAAA, dnsmessage.TypeHTTPS, dnsmessage.TypeCNAME} {
		if m := in.ask("secret-data.good.example", typ); len(m.Answers) > 0 {
			t.Errorf("a question for %s has %v", typ, m.Answers)
		}
	}
	in.quiet("for questions to the resolver")
	nobody := newInternet(t, rules("none", "ask *"))
	if who := <-nobody.handshake(nobody.lookup("good.example")[0]+":443", "good.example"); who != "refused" {
		t.Errorf("where nobody can be asked, it reached %q", who)
	}
}

func TestAskInPolicies(t *testing.T) {
	for _, bad := range []string{"ask sandbox:db", "ask * icmp", "ask localhost", "ask 224.0.0.1"} {
		if err := Check(rules("none", bad)); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if err := Check(sandbox.NetworkPolicy{AskTimeoutSeconds: sandbox.MaxAskTimeoutSeconds + 1}); err == nil {
		t.Error("ask_timeout_seconds has no bound")
	}
	for _, c := range []struct {
		policy    sandbox.NetworkPolicy
		host      string
		allow, as bool
	}{
		{rules("none", "ask a.example"), "a.example", false, true},
		{rules("none", "ask a.example"), "b.example", false, false},
		{rules("none", "ask 198.51.100.0/24"), "a.example", false, false}, // its name is not looked up
		{rules("none", "allow 198.51.100.0/24", "ask *"), "a.example", false, true},
		{rules("none", "allow a.example", "ask *"), "a.example", true, false},
		{rules("", "ask * tcp 443"), "a.example", false, true},
		{rules("none", "ask 0.0.0.0/0"), "a.example", false, true},
		{rules("", "deny a.example", "ask *"), "a.example", false, false},
	} {
		if d := mustCompile(t, c.policy).resolvable(c.host); d.Allow != c.allow || d.Ask != c.as {
			t.Errorf("%+v: %s is %+v", c.policy.Rules, c.host, d)
		}
	}
	p := mustCompile(t, rules("none", "ask *", "allow sandbox:db"))
	if d := p.Judge(Attempt{Protocol: "tcp", Port: 80, Peer: "db"}); d.Allow || d.Ask {
		t.Errorf("a peer under ask *: %+v", d)
	}
}

// TestAnsweredConnectionIsJudgedAgain checks that a connection that was allowed once
// survives changes that would ask again, and is ended by those that refuse it.
func TestAnsweredConnectionIsJudgedAgain(t *testing.T) {
	in, changed := askingInternet(t, rules("none", "ask good.example"))
	c := in.mustConnect(in.lookup("good.example")[0] + ":443")
	got := make(chan string, 1)
	go func() {
		who, _ := reached(c, "good.example")
		got <- who
	}()
	q := in.question(changed, 1)
	_ = in.g.AnswerQuestion(q.ID, true)
	if who := <-got; who != "good" {
		t.Fatalf("reached %q", who)
	}
	in.set(rules("none", "ask *"))
	if n := len(in.g.allFlows()); n != 1 {
		t.Fatalf("%d connections go on after a change", n)
	}
	refusal := Answer{Subject: q.Subject, Allow: false}
	if err := in.g.Set(Network{SandboxID: "sbx_test", Policy: rules("none", "ask *"), Answers: []Answer{refusal}}); err != nil {
		t.Fatal(err)
	}
	if !closedByGateway(c) {
		t.Error("it goes on although an answer refuses it")
	}
}

func TestQuestionExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newAsker(func() {})
		sub := Subject{Protocol: "tcp", Host: "a.example", Port: 1}
		q, _ := k.join(sub, 2*time.Minute)
		time.Sleep(2*time.Minute - time.Second)
		again, _ := k.join(sub, 2*time.Minute)
		if again != q {
			t.Error("the same subject is another question")
		}
		select {
		case <-q.done:
			t.Error("it has expired too early")
		default:
		}
		time.Sleep(time.Second)
		<-q.done
		if q.refusal == "" {
			t.Error("it was allowed by waiting")
		}
		if next, _ := k.join(sub, time.Minute); next == q {
			t.Error("one that has expired is open")
		} else {
			k.leave(next)
		}
		if len(k.open) != 0 {
			t.Errorf("open are %v", slices.Sorted(func(yield func(string) bool) {
				for s := range k.open {
					yield(s.String())
				}
			}))
		}
	})
}
