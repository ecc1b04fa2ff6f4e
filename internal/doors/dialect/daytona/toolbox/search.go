package toolbox

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/sandbox"
)

// match is a line that has a text.
type match struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Content string `json:"content"`
}

// below returns the place and the pattern of a search; the place must be there.
func (p *plane) below(r *http.Request) (dir, pattern string, err error) {
	if dir, err = named(r, "path"); err != nil {
		return "", "", err
	}
	pattern = r.URL.Query().Get("pattern")
	if pattern == "" || strings.ContainsAny(pattern, "\x00\n") {
		return "", "", answer.Invalid("the pattern is missing, or has a line break or a NUL byte; give what to look for")
	}
	if _, err := p.svc.StatFile(r.Context(), boxOf(r).ID, dir); err != nil {
		return "", "", aboutFile(dir, err)
	}
	return dir, pattern, nil
}

// findText finds the lines of text files that have a text.
func (p *plane) findText(w http.ResponseWriter, r *http.Request) error {
	dir, pattern, err := p.below(r)
	if err != nil {
		return err
	}
	out, err := p.tool(r.Context(), boxOf(r).ID, sandbox.ExecRequest{Command: []string{"grep", "-rnIFZ", "-e", pattern, "--", dir}, WorkDir: "/"})
	if err != nil {
		return err
	}
	return ok(w, parseMatches(out.stdout))
}

// parseMatches reads lines of the form FILE, NUL, NUMBER:CONTENT.
func parseMatches(text string) []match {
	all := []match{}
	for line := range strings.Lines(text) {
		file, rest, named := strings.Cut(strings.TrimSuffix(line, "\n"), "\x00")
		digits, content, numbered := strings.Cut(rest, ":")
		n, err := strconv.Atoi(digits)
		if named && numbered && err == nil {
			all = append(all, match{file, n, strings.ToValidUTF8(content, "\uFFFD")})
		}
	}
	return all
}

// searchNames finds the files whose names match a pattern of a shell's.
func (p *plane) searchNames(w http.ResponseWriter, r *http.Request) error {
	dir, pattern, err := p.below(r)
	if err != nil {
		return err
	}
	out, err := p.tool(r.Context(), boxOf(r).ID, sandbox.ExecRequest{Command: []string{"find", dir, "-name", pattern, "-print0"}, WorkDir: "/"})
	if err != nil {
		return err
	}
	files := strings.Split(out.stdout, "\x00")
	return ok(w, map[string][]string{"files": files[:len(files)-1]})
}

type replaceBody struct {
	Files    []string `json:"files"`
	Pattern  string   `json:"pattern"`
	NewValue string   `json:"newValue"`
}

type replaced struct {
	File    string `json:"file"`
	Success bool   `json:"success"`
	Error   string `json:"error,omitempty"`
}

// maxReplace bounds the files of one request.
const maxReplace = 1000

// replaceText replaces a text in files, each for itself.
func (p *plane) replaceText(w http.ResponseWriter, r *http.Request, body *replaceBody) error {
	if body.Pattern == "" || len(body.Files) > maxReplace {
		return answer.Invalid("give a pattern, and at most %d files", maxReplace)
	}
	all := make([]replaced, len(body.Files))
	for i, name := range body.Files {
		all[i] = replaced{File: name, Success: true}
		full, err := absolute(boxOf(r), name)
		if err == nil {
			_, err = p.svc.EditFile(r.Context(), boxOf(r).ID, sandbox.EditFileRequest{Path: full, OldText: body.Pattern, NewText: body.NewValue, ReplaceAll: true})
		}
		if err != nil && sandbox.CodeOf(err) != sandbox.CodeConflict { // which is: the text is not there
			all[i].Success, all[i].Error = false, answer.Of(aboutFile(name, err)).Message
		}
	}
	return ok(w, all)
}
