package toolbox

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
)

// fileStatus is what has happened to a file of a repository.
type fileStatus struct {
	Name     string `json:"name"`
	Extra    string `json:"extra"`
	Staging  string `json:"staging"`
	Worktree string `json:"worktree"`
}

type status struct {
	CurrentBranch   string       `json:"currentBranch"`
	FileStatus      []fileStatus `json:"fileStatus"`
	Ahead           int          `json:"ahead"`
	Behind          int          `json:"behind"`
	BranchPublished bool         `json:"branchPublished"`
	Upstream        string       `json:"upstream,omitempty"`
	Detached        bool         `json:"detached"`
}

// statusWords are the product's words for git's letters.
var statusWords = map[byte]string{
	'.': "Unmodified", '?': "Untracked", 'M': "Modified", 'T': "Modified", 'A': "Added", 'D': "Deleted", 'R': "Renamed", 'C': "Copied",
	'U': "Updated but unmerged",
}

func (p *plane) gitStatus(w http.ResponseWriter, r *http.Request) error {
	g, err := p.repo(r, r.URL.Query().Get("path"))
	if err != nil {
		return err
	}
	out, err := g.git(r.Context(), "status", "--porcelain=v2", "--branch", "--untracked-files=all", "-z")
	if err != nil {
		return err
	}
	return ok(w, parseStatus(out))
}

// parseStatus reads git's status in the form of porcelain version 2, ended by NULs.
func parseStatus(text string) *status {
	s := &status{FileStatus: []fileStatus{}}
	entries := strings.Split(text, "\x00")
	for i := 0; i < len(entries); i++ {
		kind, rest, _ := strings.Cut(entries[i], " ")
		switch kind {
		case "#":
			s.readHeader(rest)
		case "?":
			s.FileStatus = append(s.FileStatus, fileStatus{Name: rest, Staging: statusWords['?'], Worktree: statusWords['?']})
		case "1", "2", "u":
			fields := map[string]int{"1": 8, "2": 9, "u": 10}[kind]
			parts := strings.SplitN(rest, " ", fields)
			if len(parts) != fields || len(parts[0]) != 2 {
				continue
			}
			f := fileStatus{Name: parts[fields-1], Staging: statusWords[parts[0][0]], Worktree: statusWords[parts[0][1]]}
			if kind == "2" && i+1 < len(entries) {
				i++
				f.Extra = entries[i] // the name before
			}
			s.FileStatus = append(s.FileStatus, f)
		}
	}
	return s
}

func (s *status) readHeader(text string) {
	name, value, _ := strings.Cut(text, " ")
	switch name {
	case "branch.head":
		if s.CurrentBranch = value; value == "(detached)" {
			s.CurrentBranch, s.Detached = "HEAD", true
		}
	case "branch.upstream":
		s.Upstream, s.BranchPublished = value, true
	case "branch.ab":
		ahead, behind, _ := strings.Cut(value, " ")
		s.Ahead, _ = strconv.Atoi(strings.TrimPrefix(ahead, "+"))
		s.Behind, _ = strconv.Atoi(strings.TrimPrefix(behind, "-"))
	}
}

// commit is an entry of a history.
type commit struct {
	Hash      string `json:"hash"`
	Author    string `json:"author"`
	Email     string `json:"email"`
	Message   string `json:"message"`
	Timestamp string `json:"timestamp"`
}

func (p *plane) gitHistory(w http.ResponseWriter, r *http.Request) error {
	g, err := p.repo(r, r.URL.Query().Get("path"))
	if err != nil {
		return err
	}
	out, err := g.try(r.Context(), "log", "-z", "--format=%H%n%an%n%ae%n%aI%n%B")
	if err != nil {
		return err
	}
	if out.code != 0 {
		if strings.Contains(out.stderr, "does not have any commits") {
			return ok(w, []commit{})
		}
		return gitError(out)
	}
	return ok(w, parseHistory(out.stdout))
}

func parseHistory(text string) []commit {
	all := []commit{}
	for entry := range strings.SplitSeq(text, "\x00") {
		parts := strings.SplitN(entry, "\n", 5)
		if len(parts) == 5 {
			all = append(all, commit{parts[0], parts[1], parts[2], strings.TrimRight(parts[4], "\n"), parts[3]})
		}
	}
	return all
}

type initBody struct {
	Path   string `json:"path"`
	Bare   bool   `json:"bare"`
	Branch string `json:"initial_branch"`
}

func (p *plane) gitInit(w http.ResponseWriter, r *http.Request, body *initBody) error {
	g, err := p.repo(r, body.Path)
	if err != nil {
		return err
	}
	args := []string{"init"}
	if body.Bare {
		args = append(args, "--bare")
	}
	if body.Branch != "" {
		args = append(args, "--initial-branch="+body.Branch)
	}
	dir := g.dir
	g.dir = ""
	if _, err := g.git(r.Context(), append(args, "--", dir)...); err != nil {
		return err
	}
	return done(w, http.StatusOK)
}

type resetBody struct {
	Path   string   `json:"path"`
	Mode   string   `json:"mode"`
	Target string   `json:"target"`
	Files  []string `json:"files"`
}

func (p *plane) gitReset(w http.ResponseWriter, r *http.Request, body *resetBody) error {
	args := []string{"reset"}
	switch body.Mode {
	case "":
	case "soft", "mixed", "hard", "merge", "keep":
		args = append(args, "--"+body.Mode)
	default:
		return answer.Invalid("mode %.20q is not soft, mixed, hard, merge or keep", body.Mode)
	}
	if body.Target != "" {
		if err := checkName("target", body.Target); err != nil {
			return err
		}
		args = append(args, body.Target)
	}
	return p.gitDo(w, r, body.Path, http.StatusOK, append(append(args, "--"), body.Files...)...)
}

type restoreBody struct {
	Path     string   `json:"path"`
	Files    []string `json:"files"`
	Staged   *bool    `json:"staged"`
	Worktree *bool    `json:"worktree"`
	Source   string   `json:"source"`
}

func (p *plane) gitRestore(w http.ResponseWriter, r *http.Request, body *restoreBody) error {
	args := []string{"restore"}
	if body.Staged != nil && *body.Staged {
		args = append(args, "--staged")
	}
	if body.Worktree != nil && *body.Worktree {
		args = append(args, "--worktree")
	}
	if body.Source != "" {
		args = append(args, "--source="+body.Source)
	}
	return p.gitDo(w, r, body.Path, http.StatusOK, append(append(args, "--"), body.Files...)...)
}

type remote struct {
	Name string `json:"name"`
	URL  string `json:"url"`
}

func (p *plane) gitRemotes(w http.ResponseWriter, r *http.Request) error {
	g, err := p.repo(r, r.URL.Query().Get("path"))
	if err != nil {
		return err
	}
	out, err := g.git(r.Context(), "remote", "--verbose")
	if err != nil {
		return err
	}
	all := []remote{}
	for line := range strings.Lines(out) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if address, fetched := strings.CutSuffix(rest, " (fetch)"); fetched {
			all = append(all, remote{name, address})
		}
	}
	return ok(w, map[string]any{"remotes": all})
}

type remoteBody struct {
	Path      string `json:"path"`
	Name      string `json:"name"`
	URL       string `json:"url"`
	Fetch     bool   `json:"fetch"`
	Overwrite bool   `json:"overwrite"`
}

func (p *plane) gitAddRemote(w http.ResponseWriter, r *http.Request, body *remoteBody) error {
	g, err := p.repo(r, body.Path)
	if err != nil {
		return err
	}
	for what, text := range map[string]string{"name": body.Name, "url": body.URL} {
		if err := checkName(what, text); err != nil {
			return err
		}
	}
	change := []string{"remote", "add", body.Name, body.URL}
	if body.Overwrite {
		out, err := g.try(r.Context(), "remote", "get-url", body.Name)
		if err != nil {
			return err
		}
		if out.code == 0 {
			change[1] = "set-url"
		}
	}
	if _, err := g.git(r.Context(), change...); err != nil {
		return err
	}
	if body.Fetch {
		if _, err := g.git(r.Context(), "fetch", body.Name); err != nil {
			return err
		}
	}
	return done(w, http.StatusOK)
}

type configBody struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	Scope string `json:"scope"`
	Path  string `json:"path"`
}

// config returns the repository and the arguments of git for a scope. The default is
// global.
func (p *plane) config(r *http.Request, scope, at string) (*repo, []string, error) {
	switch scope {
	case "", "global":
		return &repo{p: p, box: boxOf(r)}, []string{"config", "--global"}, nil
	case "local":
		g, err := p.repo(r, at)
		return g, []string{"config", "--local"}, err
	case "system":
		return &repo{p: p, box: boxOf(r)}, []string{"config", "--system"}, nil
	}
	return nil, nil, answer.Invalid("scope %.20q is not global, local or system", scope)
}

func (p *plane) gitGetConfig(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	g, args, err := p.config(r, query.Get("scope"), query.Get("path"))
	if err == nil {
		err = checkName("key", query.Get("key"))
	}
	if err != nil {
		return err
	}
	out, err := g.try(r.Context(), append(args, "--get", query.Get("key"))...)
	switch {
	case err != nil:
		return err
	case out.code == 1: // it is not set
		return ok(w, map[string]any{})
	case out.code != 0:
		return gitError(out)
	}
	return ok(w, map[string]string{"value": strings.TrimSuffix(out.stdout, "\n")})
}

func (p *plane) setConfig(r *http.Request, scope, at, key, value string) error {
	g, args, err := p.config(r, scope, at)
	if err == nil {
		err = checkName("key", key)
	}
	if err == nil {
		_, err = g.git(r.Context(), append(args, "--replace-all", "--", key, value)...)
	}
	return err
}

func (p *plane) gitSetConfig(w http.ResponseWriter, r *http.Request, body *configBody) error {
	if err := p.setConfig(r, body.Scope, body.Path, body.Key, body.Value); err != nil {
		return err
	}
	return done(w, http.StatusOK)
}

type userBody struct {
	Name  string `json:"name"`
	Email string `json:"email"`
	Scope string `json:"scope"`
	Path  string `json:"path"`
}

func (p *plane) gitSetUser(w http.ResponseWriter, r *http.Request, body *userBody) error {
	for key, value := range map[string]string{"user.name": body.Name, "user.email": body.Email} {
		if err := p.setConfig(r, body.Scope, body.Path, key, value); err != nil {
			return err
		}
	}
	return done(w, http.StatusOK)
}
