package envd

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"path"
	"strings"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/sandbox"
)

// maxPasswd bounds how much of /etc/passwd is read, in bytes.
const maxPasswd = 1 << 20

// account is the sandbox of a request and the user who works in it.
type account struct {
	p    *plane
	box  *sandbox.Sandbox
	user string // "" for the sandbox's own user
	home string // "" until it is looked up
}

// userOf reads the user's name from the header of a call: clients send it as
// basic authentication without a password.
func userOf(h http.Header) (string, error) {
	if h.Get("Authorization") == "" {
		return "", nil
	}
	name, _, ok := (&http.Request{Header: h}).BasicAuth()
	if !ok || len(h.Values("Authorization")) > 1 {
		return "", fail(connect.CodeUnauthenticated, "the authorization header is not basic authentication with a user of the sandbox; leave it out for the default user")
	}
	return name, nil
}

// account returns the account of a user, "" for the sandbox's own user. A user who is
// named must exist.
func (p *plane) account(ctx context.Context, box *sandbox.Sandbox, user string) (*account, error) {
	at := &account{p: p, box: box, user: user}
	if user == "" {
		return at, nil
	}
	home, found, err := p.homeOf(ctx, box.ID, user, false)
	if err != nil {
		return nil, p.explain(ctx, box.ID, err)
	}
	if !found {
		return nil, fail(connect.CodeUnauthenticated, "invalid username: '%.256s'", user)
	}
	at.home = home
	return at, nil
}

// homeOf finds the home directory of a user of a sandbox, with byNumber also by the
// user's number.
func (p *plane) homeOf(ctx context.Context, id, user string, byNumber bool) (home string, found bool, err error) {
	file, err := p.cfg.Service.ReadFile(ctx, id, sandbox.ReadFileRequest{Path: "/etc/passwd", Limit: maxPasswd})
	if notFound(err) && !p.gone(ctx, id, err) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxPasswd))
	if err != nil {
		return "", false, err
	}
	home, found = findHome(data, user, byNumber)
	return home, found, nil
}

// findHome finds a user's home directory in the text of /etc/passwd.
func findHome(passwd []byte, user string, byNumber bool) (home string, found bool) {
	for line := range bytes.Lines(passwd) {
		f := strings.Split(strings.TrimRight(string(line), "\r\n"), ":")
		if len(f) != 7 || f[0] == "" || f[0] != user && (!byNumber || f[2] != user) {
			continue
		}
		if !path.IsAbs(f[5]) || strings.IndexByte(f[5], 0) >= 0 {
			return "/", true
		}
		return path.Clean(f[5]), true
	}
	return "", false
}

// homeDir returns the home directory of the user.
func (at *account) homeDir(ctx context.Context) (string, error) {
	if at.home != "" {
		return at.home, nil
	}
	user, _, _ := strings.Cut(at.box.User, ":")
	if user == "" {
		user = "root"
	}
	home, found, err := at.p.homeOf(ctx, at.box.ID, user, true)
	if err != nil {
		return "", at.p.explain(ctx, at.box.ID, err)
	}
	if !found {
		home = "/"
	}
	at.home = home
	return home, nil
}

// resolve makes a path absolute and clean: a relative path and "~" start at the user's
// home, and "" is the sandbox's working directory.
func (at *account) resolve(ctx context.Context, p string) (string, error) {
	switch {
	case len(p) > sandbox.MaxPathBytes || strings.IndexByte(p, 0) >= 0:
		return "", fail(connect.CodeInvalidArgument, "the path is longer than %d bytes or holds a NUL byte; give another", sandbox.MaxPathBytes)
	case p == "" && path.IsAbs(at.box.WorkDir):
		return path.Clean(at.box.WorkDir), nil
	case path.IsAbs(p):
		return path.Clean(p), nil
	case p == "~" || strings.HasPrefix(p, "~/"):
		p = p[1:]
	case strings.HasPrefix(p, "~"):
		return "", fail(connect.CodeInvalidArgument, "cannot expand user-specific home dir")
	}
	home, err := at.homeDir(ctx)
	if err != nil {
		return "", err
	}
	return path.Join(home, p), nil
}
