package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// verbs call everything that names a sandbox.
var verbs = map[string]func(ctx context.Context, s sandbox.Service, id string) error{
	"get": func(ctx context.Context, s sandbox.Service, id string) error {
		_, err := s.Get(ctx, id)
		return err
	},
	"update": func(ctx context.Context, s sandbox.Service, id string) error {
		_, err := s.Update(ctx, id, sandbox.UpdateRequest{Name: ptr("stolen")})
		return err
	},
	"kill": func(ctx context.Context, s sandbox.Service, id string) error {
		_, err := s.Kill(ctx, id)
		return err
	},
	"stats": func(ctx context.Context, s sandbox.Service, id string) error {
		_, err := s.Stats(ctx, id)
		return err
	},
	"exec": func(ctx context.Context, s sandbox.Service, id string) error {
		_, err := s.Exec(ctx, id, sandbox.ExecRequest{Shell: "touch /workspace/touched"}, nil)
		return err
	},
	"list jobs": func(ctx context.Context, s sandbox.Service, id string) error {
		_, err := s.ListJobs(ctx, id, sandbox.Page{})
		return err
	},
	"read file": func(ctx context.Context, s sandbox.Service, id string) error {
		r, err := s.ReadFile(ctx, id, sandbox.ReadFileRequest{Path: "/etc/passwd"})
		if err == nil {
			r.Close()
		}
		return err
	},
	"write file": func(ctx context.Context, s sandbox.Service, id string) error {
		_, err := s.WriteFile(ctx, id, sandbox.WriteFileRequest{Path: "/workspace/touched"}, strings.NewReader("x"))
		return err
	},
	"list files": func(ctx context.Context, s sandbox.Service, id string) error {
		_, err := s.ListFiles(ctx, id, sandbox.ListFilesRequest{Path: "/"})
		return err
	},
	"archive": func(ctx context.Context, s sandbox.Service, id string) error {
		r, err := s.ArchiveDir(ctx, id, "/workspace", 0)
		if err == nil {
			r.Close()
		}
		return err
	},
	"watch": func(ctx context.Context, s sandbox.Service, id string) error {
		return s.WatchFiles(ctx, id, sandbox.WatchRequest{Path: "/workspace"}, func(sandbox.WatchEvent) error { return errors.New("it watches") })
	},
}

// Unknown, foreign and ended sandboxes: each verb says so, unknown and foreign
// in the same words.
func TestSandboxesThatCannotBeUsed(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		mine, over := with(t, d, func(r *sandbox.CreateRequest) { r.Name = "mine" }), d.Create(t, covetest.Small())
		if _, err := d.Client.Kill(t.Context(), over.ID); err != nil {
			t.Fatal(err)
		}
		key, err := d.Client.CreateKey(t.Context(), sandbox.CreateKeyRequest{Name: "other", Team: "others"})
		if err != nil {
			t.Fatal(err)
		}
		stranger, err := client.New(client.Config{URL: d.URL, Key: client.Secret(key.Secret)})
		if err != nil {
			t.Fatal(err)
		}
		defer stranger.Close()
		unknown := "sbx-" + strings.Repeat("a", len(mine.ID)-4)
		for name, verb := range verbs {
			t.Run(name, func(t *testing.T) {
				none := verb(t.Context(), stranger, unknown)
				foreign := verb(t.Context(), stranger, mine.ID)
				covetest.WantCode(t, none, sandbox.CodeNotFound)
				covetest.WantCode(t, foreign, sandbox.CodeNotFound)
				if none != nil && foreign != nil && strings.ReplaceAll(none.Error(), unknown, mine.ID) != foreign.Error() {
					t.Errorf("an unknown one: %v\na foreign one: %v", none, foreign)
				}
				covetest.WantCode(t, verb(t.Context(), stranger, "mine"), sandbox.CodeNotFound)
				if name != "get" && name != "kill" {
					covetest.WantCode(t, verb(t.Context(), d.Client, over.ID), sandbox.CodeNotRunning)
				}
			})
		}
		d.Shows(t, "mine", "ls -A /workspace", "")
	})
}

func TestBadInput(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := with(t, d)
		big := strings.Repeat("x", 100<<20)
		exec := func(req sandbox.ExecRequest) error {
			_, err := d.Client.Exec(t.Context(), s.ID, req, nil)
			return err
		}
		create := func(req sandbox.CreateRequest) error {
			_, err := d.Client.Create(t.Context(), req)
			return err
		}
		write := func(req sandbox.WriteFileRequest) error {
			_, err := d.Client.WriteFile(t.Context(), s.ID, req, strings.NewReader("x"))
			return err
		}
		for name, c := range map[string]struct {
			want sandbox.Code
			call func() error
		}{
			"argument of 100 MB": {sandbox.CodeTooLarge, func() error { return exec(sandbox.ExecRequest{Command: []string{"echo", big}}) }},
			"shell of 100 MB":    {sandbox.CodeTooLarge, func() error { return exec(sandbox.ExecRequest{Shell: big}) }},
			"stdin of 100 MB":    {sandbox.CodeTooLarge, func() error { return exec(sandbox.ExecRequest{Shell: "cat", Stdin: []byte(big)}) }},
			"many arguments": {sandbox.CodeTooLarge, func() error {
				return exec(sandbox.ExecRequest{Command: append([]string{"echo"}, make([]string, 300_000)...)})
			}},
			"NUL in an argument":  {sandbox.CodeInvalid, func() error { return exec(sandbox.ExecRequest{Command: []string{"echo", "a\x00b"}}) }},
			"NUL in shell":        {sandbox.CodeInvalid, func() error { return exec(sandbox.ExecRequest{Shell: "echo \x00"}) }},
			"NUL in env":          {sandbox.CodeInvalid, func() error { return exec(sandbox.ExecRequest{Shell: "env", Env: map[string]string{"A": "\x00"}}) }},
			"NUL in a path":       {sandbox.CodeInvalid, func() error { return write(sandbox.WriteFileRequest{Path: "/workspace/a\x00b"}) }},
			"bad UTF-8":           {sandbox.CodeInvalid, func() error { return exec(sandbox.ExecRequest{Shell: "echo \xff"}) }},
			"bad UTF-8 in a path": {sandbox.CodeInvalid, func() error { return write(sandbox.WriteFileRequest{Path: "/workspace/\xff"}) }},
			"no command":          {sandbox.CodeInvalid, func() error { return exec(sandbox.ExecRequest{}) }},
			"no such program":     {sandbox.CodeNotFound, func() error { return exec(sandbox.ExecRequest{Command: []string{"no-such-program"}}) }},
			"negative timeout":    {sandbox.CodeInvalid, func() error { return exec(sandbox.ExecRequest{Shell: "true", TimeoutMS: -5}) }},
			"huge timeout":        {sandbox.CodeInvalid, func() error { return exec(sandbox.ExecRequest{Shell: "true", TimeoutMS: 1 << 62}) }},
			"negative keep":       {sandbox.CodeInvalid, func() error { return exec(sandbox.ExecRequest{Shell: "true", KeepBytes: -1}) }},
			"negative processors": {sandbox.CodeInvalid, func() error { return create(sandbox.CreateRequest{Resources: sandbox.Resources{VCPUs: -1}}) }},
			"huge memory":         {sandbox.CodeInvalid, func() error { return create(sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 1 << 62}}) }},
			"negative disk":       {sandbox.CodeInvalid, func() error { return create(sandbox.CreateRequest{Resources: sandbox.Resources{DiskMiB: -1 << 62}}) }},
			"negative lifetime":   {sandbox.CodeInvalid, func() error { return create(sandbox.CreateRequest{LifetimeSeconds: ptr(int64(-1))}) }},
			"huge lifetime":       {sandbox.CodeInvalid, func() error { return create(sandbox.CreateRequest{LifetimeSeconds: ptr(int64(1 << 62))}) }},
			"name like an id":     {sandbox.CodeInvalid, func() error { return create(sandbox.CreateRequest{Name: "sbx-x"}) }},
			"name of a path":      {sandbox.CodeInvalid, func() error { return create(sandbox.CreateRequest{Name: "../../etc"}) }},
			"unknown template":    {sandbox.CodeNotFound, func() error { return create(sandbox.CreateRequest{Template: "nope"}) }},
			"template of a path":  {sandbox.CodeInvalid, func() error { return create(sandbox.CreateRequest{Template: "../../../etc"}) }},
			"long path":           {sandbox.CodeInvalid, func() error { return write(sandbox.WriteFileRequest{Path: "/workspace/" + strings.Repeat("d/", 4000)}) }},
			"mode":                {sandbox.CodeInvalid, func() error { return write(sandbox.WriteFileRequest{Path: "/workspace/x", Mode: "99"}) }},
			"negative offset": {sandbox.CodeInvalid, func() error {
				_, err := d.Client.ReadFile(t.Context(), s.ID, sandbox.ReadFileRequest{Path: "/etc/passwd", Offset: -1})
				return err
			}},
			"negative page": {sandbox.CodeInvalid, func() error {
				_, err := d.Client.List(t.Context(), sandbox.ListRequest{Page: sandbox.Page{Limit: -1}})
				return err
			}},
			"cursor": {sandbox.CodeInvalid, func() error {
				_, err := d.Client.List(t.Context(), sandbox.ListRequest{Page: sandbox.Page{Cursor: "'; drop table sandboxes"}})
				return err
			}},
		} {
			t.Run(name, func(t *testing.T) {
				began := time.Now()
				err := c.call()
				covetest.WantCode(t, err, c.want)
				if err != nil && (len(err.Error()) > 1000 || strings.Contains(err.Error(), "goroutine")) {
					t.Errorf("the error is no short sentence: %.2000s", err)
				}
				if took := time.Since(began); took > time.Minute {
					t.Errorf("it took %v to refuse", took)
				}
			})
		}
		t.Run("raw bytes", func(t *testing.T) { rawBytes(t, d, s.ID) })
		d.Shows(t, s.ID, "ls -A /workspace; echo fine", "fine")
		if rss := d.ResidentMiB(t); rss > 700 {
			t.Errorf("the daemon has %d MiB after requests of 100 MB", rss)
		}
	})
}

// rawBytes sends requests that the client would refuse to send.
func rawBytes(t *testing.T, d *covetest.Daemon, id string) {
	c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(d.StateDir, "cove.sock"))
	}}}
	defer c.CloseIdleConnections()
	for _, tt := range []struct {
		name, path, body string
		status           int
	}{
		{"bad UTF-8", "/v1/sandboxes", "{\"name\":\"\xff\xfe\"}", 400},
		{"NUL", "/v1/sandboxes", `{"env":{"A":"\u0000"}}`, 400},
		{"unknown member", "/v1/sandboxes", `{"cpu":2}`, 400},
		{"huge number", "/v1/sandboxes", `{"resources":{"vcpus":1e400}}`, 400},
		{"deep nesting", "/v1/sandboxes", strings.Repeat(`{"env":`, 20_000), 400},
		{"bad id", "/v1/sandboxes/%00%ff/exec", `{"shell":"true"}`, 404},
		{"path for an id", "/v1/sandboxes/..%2f..%2fetc/exec", `{"shell":"true"}`, 404},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), "POST", "http://cove"+tt.path, strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			res, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			body, _ := io.ReadAll(res.Body)
			if res.StatusCode != tt.status || !bytes.Contains(body, []byte(`"code"`)) {
				t.Errorf("%s: %d %s; want %d with a code", tt.path, res.StatusCode, body, tt.status)
			}
		})
	}
}

// Paths always refer to files of the sandbox, whatever they contain.
func TestPathsStayInside(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := with(t, d)
		// A file of the host, next to the daemon's state.
		secret := filepath.Join(d.StateDir, "host-secret")
		if err := os.WriteFile(secret, []byte("host"), 0o666); err != nil {
			t.Fatal(err)
		}
		up := strings.Repeat("../", 30)
		d.Sh(t, s.ID, "ln -s "+secret+" /workspace/link; ln -s "+up+"proc/1/root/"+secret+" /workspace/root; ln -s loop /workspace/loop")
		paths := []string{secret, up + secret, "/workspace/link", "/workspace/root", "/proc/1/root" + secret, "/proc/self/root" + secret, "/workspace/loop"}
		for _, path := range paths {
			if r, err := d.Client.ReadFile(t.Context(), s.ID, sandbox.ReadFileRequest{Path: path}); err == nil {
				data, _ := io.ReadAll(r)
				t.Errorf("%s reads %q", path, data)
				r.Close()
			} else if code := sandbox.CodeOf(err); code == sandbox.CodeInternal || code == sandbox.CodeUnavailable {
				t.Errorf("%s: %v (%s)", path, err, code)
			}
		}
		for _, path := range paths {
			// Where this writes, if it does, is inside.
			_, _ = d.Client.WriteFile(t.Context(), s.ID, sandbox.WriteFileRequest{Path: path, MakeParents: true}, strings.NewReader("sandbox"))
		}
		if data, err := os.ReadFile(secret); err != nil || string(data) != "host" {
			t.Errorf("the host's file is %q, %v", data, err)
		}
	})
}

// Code inside exchanges a directory and a link all the time while files are
// written through it: each write is all or nothing, and leaves nothing else.
func TestLinkRaces(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := with(t, d)
		d.Sh(t, s.ID, "mkdir -p /workspace/real /workspace/other")
		job, err := d.Client.Exec(t.Context(), s.ID, sandbox.ExecRequest{Background: true, Command: []string{"perl", "-e",
			`chdir "/workspace"; while (1) { symlink "/etc", "l"; rename "l", "d"; unlink "d"; rename "real", "d"; rename "d", "real"; symlink "other", "l"; rename "l", "d"; unlink "d" }`}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		content := strings.Repeat("whole", 1000)
		written := 0
		for range 40 {
			_, err := d.Client.WriteFile(t.Context(), s.ID, sandbox.WriteFileRequest{Path: "/workspace/d/passwd-x", Owner: s.User}, strings.NewReader(content))
			switch code := sandbox.CodeOf(err); code {
			case "":
				written++
			case sandbox.CodeInternal, sandbox.CodeUnavailable, sandbox.CodeTimeout:
				t.Fatalf("a write in a race: %v (%s)", err, code)
			}
			r, err := d.Client.ReadFile(t.Context(), s.ID, sandbox.ReadFileRequest{Path: "/workspace/d/passwd-x"})
			if err != nil {
				continue
			}
			data, err := io.ReadAll(r)
			r.Close()
			if err == nil && string(data) != content {
				t.Fatalf("a reader saw %d bytes of %d", len(data), len(content))
			}
		}
		if _, err := d.Client.SignalJob(t.Context(), s.ID, job.ID, "KILL", 0); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d of 40 writes found a directory", written)
		d.Shows(t, s.ID, `find /workspace /etc -name ".cove-*" | wc -l`, "0")
	})
}

// A team that has reached its quota is told when to try again.
func TestQuotaReached(t *testing.T) {
	d := covetest.Start(t, covetest.Options{Args: []string{"--quota-sandboxes", "1"}})
	first := d.Create(t, covetest.Small())
	_, err := d.Client.Create(t.Context(), covetest.Small())
	covetest.WantCode(t, err, sandbox.CodeQuotaExceeded)
	if e, ok := errors.AsType[*sandbox.Error](err); !ok || e.RetryAfter <= 0 {
		t.Errorf("no time to retry is given: %v", err)
	}
	if _, err := d.Client.Kill(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	d.Create(t, covetest.Small())
}

// A client whose process is killed takes its command with it.
func TestClientProcessDies(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := with(t, d)
		cmd := d.Command(t.Context(), "exec", s.ID, "--", "sh", "-c", "echo up; sleep 888 & exec sleep 888")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		nobody(t, d, s.ID, "sleep 888")
	})
}
