package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/coder/websocket"

	"github.com/cove-sh/cove/sandbox"
)

// startJob is the job of a template's start command.
const startJob = "job-start"

// starter describes a template that contains a project.
type starter struct {
	port int
	// page is the file that is edited, served at path, with heading in it.
	page, path, heading string
	// server is its process, as pgrep finds it.
	server string
	// live are the path and the protocol of the connection on which a browser learns of
	// edits.
	live func(u *user) (path, protocol string, err error)
}

func useNextJS(u *user) {
	u.starter(&starter{
		port: 3000, page: "app/page.tsx", path: "/", heading: "Next.js", server: "bin/[n]ext dev",
		live: func(*user) (string, string, error) { return "/_next/hmr?id=test", "", nil },
	})
	u.shells([3]string{"no telemetry", "echo telemetry=$NEXT_TELEMETRY_DISABLED; node_modules/.bin/next telemetry status", "Disabled"})
}

var viteToken = regexp.MustCompile(`wsToken = "([^"]+)"`)

func useReactVite(u *user) {
	u.starter(&starter{
		port: 5173, page: "src/App.tsx", path: "/src/App.tsx", heading: "React", server: "bin/[v]ite$",
		live: func(u *user) (string, string, error) {
			client, err := u.sh("curl -fsS localhost:5173/@vite/client")
			if err != nil {
				return "", "", err
			}
			m := viteToken.FindStringSubmatch(client)
			if m == nil {
				return "", "", errors.New("its client has no token")
			}
			return "/?token=" + m[1], "vite-hmr", nil
		},
	})
}

// starter tests a sandbox that contains a project: unchanged, after an edit, with the
// commands of its kind, and without a network.
func (u *user) starter(s *starter) {
	link, err := u.preview(s.port)
	if !u.note("a preview", err) {
		return
	}
	u.note("its page at once", u.served(link+s.path, s.heading))
	u.note("edits heard by the browser", u.hears(link, s))
	u.shells(commonChecks...)
	u.shells([3]string{"the user's project", `test -z "$(find /workspace ! -user user -print -quit)"; ls -A; git init -q; git add -A; git ls-files | wc -l`, "package-lock.json"})
	if u.edit(s, "One more") {
		u.note("an edit served", u.await(func() error { return u.served(link+s.path, "One more") }))
	}
	u.project(s)
	_, err = u.d.Client.Exec(u.ctx, u.id, sandbox.ExecRequest{Shell: "npm run dev", Background: true, TimeoutMS: sandbox.MaxExecTimeout.Milliseconds()}, nil)
	if err == nil {
		err = u.await(func() error {
			if first, err := u.d.Client.GetJob(u.ctx, u.id, startJob); err != nil || first.State == sandbox.JobRunning {
				return cmp.Or(err, errors.New("the first server runs"))
			}
			return u.served(link+s.path, "One more")
		})
	}
	u.note("npm run dev in the place of the first", err)
	u.shells([3]string{"one server", "pgrep -cf '" + s.server + "'", "1"})
	u.alone(s)
}

// project performs the usual tasks of a project, none of which needs a network.
func (u *user) project(s *starter) {
	u.shells(
		[3]string{"npm install", "npm install 2>&1", "up to date"},
		[3]string{"npm run build", "npm run build 2>&1", ""},
	)
	if u.edit(s, "{wrong}") {
		u.shells([3]string{"a build that finds mistakes", "! npm run build 2>&1", "Cannot find name 'wrong'"})
	}
	u.edit(s, "One more")
}

// alone uses another sandbox, which has no network from its beginning.
func (u *user) alone(s *starter) {
	sbx, err := u.d.Client.Create(u.ctx, sandbox.CreateRequest{Template: u.template, Network: &sandbox.NetworkPolicy{Preset: sandbox.NetworkNone}})
	if !u.note("a sandbox without a network", err) {
		return
	}
	defer func() { _, _ = u.d.Client.Kill(context.WithoutCancel(u.ctx), sbx.ID) }()
	defer func(id string) { u.id = id }(u.id)
	u.id = sbx.ID
	link, err := u.preview(s.port)
	if err == nil {
		err = u.served(link+s.path, s.heading)
	}
	u.note("its page too", err)
	u.project(s)
	if u.edit(s, "On my own") {
		u.note("its edit too", u.await(func() error { return u.served(link+s.path, "On my own") }))
	}
}

// edit rewrites the page with a heading.
func (u *user) edit(s *starter, heading string) bool {
	err := u.put("/workspace/"+s.page, fmt.Sprintf("export default function Page() {\n  return <h1>%s</h1>\n}\n", heading))
	return err == nil || u.note("write "+s.page, err)
}

// preview makes a public preview.
func (u *user) preview(port int) (link string, err error) {
	p, err := u.d.Client.CreatePreview(u.ctx, u.id, sandbox.CreatePreviewRequest{Port: port, Access: sandbox.PreviewPublic})
	if err != nil {
		return "", err
	}
	return strings.TrimSuffix(p.URL, "/"), nil
}

// visitor is a browser on this machine, for which names of previews lead to the
// daemon.
func (u *user) visitor() (*http.Client, error) {
	server, err := url.Parse(u.d.URL)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, server.Host)
	}}}, nil
}

// served gets a URL of a preview, and compares.
func (u *user) served(link, want string) error {
	visitor, err := u.visitor()
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(u.ctx, http.MethodGet, link, nil)
	if err != nil {
		return err
	}
	resp, err := visitor.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || !strings.Contains(string(body), want)) {
		err = fmt.Errorf("%s: status %d, without %q: %.400q", link, resp.StatusCode, want, body)
	}
	return err
}

// hears opens the connection on which a browser learns of edits, as its page does.
func (u *user) hears(link string, s *starter) error {
	path, protocol, err := s.live(u)
	if err != nil {
		return err
	}
	visitor, err := u.visitor()
	if err != nil {
		return err
	}
	opts := &websocket.DialOptions{HTTPClient: visitor, HTTPHeader: http.Header{"Origin": {link}}}
	if protocol != "" {
		opts.Subprotocols = []string{protocol}
	}
	ctx, cancel := context.WithTimeout(u.ctx, patience)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, link+path, opts)
	if err != nil {
		return err
	}
	defer conn.CloseNow()
	_, _, err = conn.Read(ctx)
	return err
}
