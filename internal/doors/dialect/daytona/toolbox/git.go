package toolbox

import (
	"context"
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/sandbox"
)

func (p *plane) gitRoutes(rt *answer.Router) {
	rt.On("POST /git/clone", decoded(p.gitClone))
	rt.On("GET /git/status", p.gitStatus)
	rt.On("POST /git/add", decoded(p.gitAdd))
	rt.On("POST /git/commit", decoded(p.gitCommit))
	rt.On("POST /git/push", decoded(p.gitPush))
	rt.On("POST /git/pull", decoded(p.gitPull))
	rt.On("GET /git/branches", p.gitBranches)
	rt.On("POST /git/branches", decoded(p.gitCreateBranch))
	rt.On("DELETE /git/branches", decoded(p.gitDeleteBranch))
	rt.On("POST /git/checkout", decoded(p.gitCheckout))
	rt.On("GET /git/history", p.gitHistory)
	rt.On("POST /git/init", decoded(p.gitInit))
	rt.On("POST /git/reset", decoded(p.gitReset))
	rt.On("POST /git/restore", decoded(p.gitRestore))
	rt.On("GET /git/remotes", p.gitRemotes)
	rt.On("POST /git/remotes", decoded(p.gitAddRemote))
	rt.On("GET /git/config", p.gitGetConfig)
	rt.On("POST /git/config", decoded(p.gitSetConfig))
	rt.On("POST /git/config/user", decoded(p.gitSetUser))
}

// A repo is a directory of a sandbox in which its git works.
type repo struct {
	p   *plane
	box *sandbox.Sandbox
	dir string // "" for none
	env map[string]string
}

// repo returns the repository at a path of a request.
func (p *plane) repo(r *http.Request, at string) (*repo, error) {
	if at == "" {
		return nil, answer.Invalid("the path is missing; name the repository")
	}
	dir, err := absolute(boxOf(r), at)
	return &repo{p, boxOf(r), dir, nil}, err
}

// git runs the sandbox's git. Its failure is an error in the product's terms.
func (g *repo) git(ctx context.Context, args ...string) (string, error) {
	out, err := g.try(ctx, args...)
	if err == nil && out.code != 0 {
		err = gitError(out)
	}
	if err != nil {
		return "", err
	}
	return out.stdout, nil
}

// try is git for commands that may fail.
func (g *repo) try(ctx context.Context, args ...string) (*tool, error) {
	command := []string{"git"}
	if g.dir != "" {
		command = append(command, "-C", g.dir)
	}
	env := map[string]string{"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
	for name, value := range g.env {
		env[name] = value
	}
	out, err := g.p.tool(ctx, g.box.ID, sandbox.ExecRequest{
		Command: append(command, args...), Env: env, WorkDir: "/", TimeoutMS: sandbox.MaxExecTimeout.Milliseconds(),
	})
	if sandbox.ReasonOf(err) == sandbox.ReasonProgramNotFound {
		return nil, answer.Fail(http.StatusNotImplemented, answer.NotImplemented, "the sandbox's template has no git; build one with it: cove template build NAME --package git")
	}
	return out, err
}

// login makes git log in at the host of an address, and nowhere else.
func (g *repo) login(address, user, password string, insecure bool) error {
	g.env = map[string]string{}
	if insecure {
		g.env["GIT_SSL_NO_VERIFY"] = "1"
	}
	if user == "" && password == "" {
		return nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return answer.Invalid("username and password are for http and https; leave them out for %.200s", address)
	}
	g.env["GIT_CONFIG_COUNT"] = "1"
	g.env["GIT_CONFIG_KEY_0"] = "http." + u.Scheme + "://" + u.Host + "/.extraHeader"
	g.env["GIT_CONFIG_VALUE_0"] = "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	return nil
}

// gitErrors are the product's errors for what git says.
var gitErrors = []struct {
	says   string
	status int
	code   string
}{
	{"not a git repository", http.StatusNotFound, "GIT_REPO_NOT_FOUND"},
	{"No such file or directory", http.StatusNotFound, "GIT_REPO_NOT_FOUND"},
	{"does not appear to be a git repository", http.StatusNotFound, "GIT_REPO_NOT_FOUND"},
	{"does not exist", http.StatusNotFound, "GIT_REPO_NOT_FOUND"},
	{"Repository not found", http.StatusNotFound, "GIT_REPO_NOT_FOUND"},
	{"Authentication failed", http.StatusUnauthorized, "GIT_AUTH_FAILED"},
	{"could not read Username", http.StatusUnauthorized, "GIT_AUTH_FAILED"},
	{"Permission denied (publickey", http.StatusUnauthorized, "GIT_AUTH_FAILED"},
	{"did not match any file(s) known to git", http.StatusNotFound, "GIT_BRANCH_NOT_FOUND"},
	{"Remote branch", http.StatusNotFound, "GIT_BRANCH_NOT_FOUND"},
	{"couldn't find remote ref", http.StatusNotFound, "GIT_BRANCH_NOT_FOUND"},
	{"invalid reference", http.StatusNotFound, "GIT_BRANCH_NOT_FOUND"},
	{"error: branch ", http.StatusNotFound, "GIT_BRANCH_NOT_FOUND"},
	{"already exists", http.StatusConflict, "GIT_BRANCH_EXISTS"},
	{"[rejected]", http.StatusConflict, "GIT_PUSH_REJECTED"},
	{"would be overwritten", http.StatusConflict, "GIT_DIRTY_WORKTREE"},
	{"CONFLICT", http.StatusConflict, "GIT_MERGE_CONFLICT"},
	{"[remote rejected]", http.StatusUnprocessableEntity, "GIT_REMOTE_REJECTED"},
	{"Could not resolve host", http.StatusBadGateway, "GIT_TRANSPORT_FAILED"},
	{"unable to access", http.StatusBadGateway, "GIT_TRANSPORT_FAILED"},
	{"Could not read from remote repository", http.StatusBadGateway, "GIT_TRANSPORT_FAILED"},
}

// gitError is the error for a command of git that has failed.
func gitError(out *tool) error {
	text := strings.TrimSpace(out.stderr)
	if text == "" {
		text = strings.TrimSpace(out.stdout)
	}
	if len(text) > 2000 {
		text = text[:2000]
	}
	for _, known := range gitErrors {
		if strings.Contains(out.stderr+out.stdout, known.says) {
			return answer.Fail(known.status, known.code, "%s", text)
		}
	}
	return answer.Invalid("git: %s", text)
}

// checkName refuses a name that git would take for an option.
func checkName(what, name string) error {
	if name == "" || strings.HasPrefix(name, "-") {
		return answer.Invalid("%s %.80q is empty or begins with -; give a name", what, name)
	}
	return nil
}

type cloneBody struct {
	URL      string `json:"url"`
	Path     string `json:"path"`
	Branch   string `json:"branch"`
	CommitID string `json:"commit_id"`
	Username string `json:"username"`
	Password string `json:"password"`
	Depth    int    `json:"depth"`
	Insecure bool   `json:"insecure_skip_tls"`
}

func (p *plane) gitClone(w http.ResponseWriter, r *http.Request, body *cloneBody) error {
	g, err := p.repo(r, body.Path)
	if err != nil {
		return err
	}
	if err := checkName("url", body.URL); err != nil {
		return err
	}
	if err := g.login(body.URL, body.Username, body.Password, body.Insecure); err != nil {
		return err
	}
	args := []string{"clone"}
	if body.Branch != "" {
		args = append(args, "--single-branch", "--branch="+body.Branch)
	}
	if body.Depth > 0 {
		args = append(args, "--depth="+strconv.Itoa(body.Depth))
	}
	dir := g.dir
	g.dir = ""
	if _, err := g.git(r.Context(), append(args, "--", body.URL, dir)...); err != nil {
		return err
	}
	if g.dir = dir; body.CommitID != "" {
		if err := checkName("commit_id", body.CommitID); err != nil {
			return err
		}
		if _, err := g.git(r.Context(), "checkout", "--detach", body.CommitID, "--"); err != nil {
			return err
		}
	}
	return done(w, http.StatusOK)
}

type addBody struct {
	Path  string   `json:"path"`
	Files []string `json:"files"`
}

func (p *plane) gitAdd(w http.ResponseWriter, r *http.Request, body *addBody) error {
	return p.gitDo(w, r, body.Path, http.StatusOK, append([]string{"add", "--"}, body.Files...)...)
}

// gitDo runs one command in a repository and answers without a body.
func (p *plane) gitDo(w http.ResponseWriter, r *http.Request, at string, status int, args ...string) error {
	g, err := p.repo(r, at)
	if err != nil {
		return err
	}
	if _, err := g.git(r.Context(), args...); err != nil {
		return err
	}
	return done(w, status)
}

type commitBody struct {
	Path       string `json:"path"`
	Message    string `json:"message"`
	Author     string `json:"author"`
	Email      string `json:"email"`
	AllowEmpty bool   `json:"allow_empty"`
}

func (p *plane) gitCommit(w http.ResponseWriter, r *http.Request, body *commitBody) error {
	g, err := p.repo(r, body.Path)
	if err != nil {
		return err
	}
	g.env = map[string]string{
		"GIT_AUTHOR_NAME": body.Author, "GIT_AUTHOR_EMAIL": body.Email, "GIT_COMMITTER_NAME": body.Author, "GIT_COMMITTER_EMAIL": body.Email,
	}
	args := []string{"commit", "--message=" + body.Message}
	if body.AllowEmpty {
		args = append(args, "--allow-empty")
	}
	if _, err := g.git(r.Context(), args...); err != nil {
		return err
	}
	hash, err := g.git(r.Context(), "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	return ok(w, map[string]string{"hash": strings.TrimSpace(hash)})
}

type syncBody struct {
	Path        string `json:"path"`
	Username    string `json:"username"`
	Password    string `json:"password"`
	Branch      string `json:"branch"`
	Remote      string `json:"remote"`
	SetUpstream bool   `json:"set_upstream"`
	Insecure    bool   `json:"insecure_skip_tls"`
}

// sync prepares a push or a pull, and returns the remote and the branch.
func (p *plane) sync(r *http.Request, body *syncBody) (g *repo, remote, branch string, err error) {
	if g, err = p.repo(r, body.Path); err != nil {
		return nil, "", "", err
	}
	remote, branch = body.Remote, body.Branch
	if remote == "" {
		remote = "origin"
	}
	if err = checkName("remote", remote); err != nil {
		return nil, "", "", err
	}
	if branch == "" {
		out, err := g.git(r.Context(), "symbolic-ref", "--short", "HEAD")
		if err != nil {
			return nil, "", "", err
		}
		branch = strings.TrimSpace(out)
	}
	if err = checkName("branch", branch); err != nil {
		return nil, "", "", err
	}
	if body.Username+body.Password == "" && !body.Insecure {
		return g, remote, branch, nil
	}
	address, err := g.git(r.Context(), "remote", "get-url", remote)
	if err == nil {
		err = g.login(strings.TrimSpace(address), body.Username, body.Password, body.Insecure)
	}
	return g, remote, branch, err
}

func (p *plane) gitPush(w http.ResponseWriter, r *http.Request, body *syncBody) error {
	g, remote, branch, err := p.sync(r, body)
	if err != nil {
		return err
	}
	args := []string{"push"}
	if body.SetUpstream {
		args = append(args, "--set-upstream")
	}
	if _, err := g.git(r.Context(), append(args, remote, branch)...); err != nil {
		return err
	}
	return done(w, http.StatusOK)
}

func (p *plane) gitPull(w http.ResponseWriter, r *http.Request, body *syncBody) error {
	g, remote, branch, err := p.sync(r, body)
	if err != nil {
		return err
	}
	if _, err := g.git(r.Context(), "pull", "--no-rebase", "--no-edit", remote, branch); err != nil {
		return err
	}
	return done(w, http.StatusOK)
}

func (p *plane) gitBranches(w http.ResponseWriter, r *http.Request) error {
	g, err := p.repo(r, r.URL.Query().Get("path"))
	if err != nil {
		return err
	}
	out, err := g.git(r.Context(), "for-each-ref", "--format=%(refname:short)", "refs/heads")
	if err != nil {
		return err
	}
	answer := map[string]any{"branches": append([]string{}, strings.Fields(out)...)}
	if head, err := g.try(r.Context(), "symbolic-ref", "--quiet", "--short", "HEAD"); err == nil && head.code == 0 {
		answer["current"] = strings.TrimSpace(head.stdout)
	}
	return ok(w, answer)
}

type branchBody struct {
	Path   string `json:"path"`
	Name   string `json:"name"`
	Branch string `json:"branch"`
}

func (p *plane) gitCreateBranch(w http.ResponseWriter, r *http.Request, body *branchBody) error {
	if err := checkName("branch", body.Name); err != nil {
		return err
	}
	return p.gitDo(w, r, body.Path, http.StatusCreated, "branch", "--", body.Name)
}

func (p *plane) gitDeleteBranch(w http.ResponseWriter, r *http.Request, body *branchBody) error {
	if err := checkName("branch", body.Name); err != nil {
		return err
	}
	return p.gitDo(w, r, body.Path, http.StatusNoContent, "branch", "-D", "--", body.Name)
}

func (p *plane) gitCheckout(w http.ResponseWriter, r *http.Request, body *branchBody) error {
	if err := checkName("branch", body.Branch); err != nil {
		return err
	}
	return p.gitDo(w, r, body.Path, http.StatusOK, "checkout", body.Branch, "--")
}
