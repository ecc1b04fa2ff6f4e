package toolbox

import (
	"context"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

func (p *plane) fileRoutes(rt *answer.Router) {
	rt.On("GET /files", p.listFiles)
	rt.On("DELETE /files", p.deleteFile)
	rt.On("GET /files/info", p.fileInfo)
	rt.On("POST /files/folder", p.makeFolder)
	rt.On("POST /files/move", p.moveFile)
	rt.On("POST /files/permissions", p.setPermissions)
	rt.On("GET /files/find", p.findText)
	rt.On("GET /files/search", p.searchNames)
	rt.On("POST /files/replace", decoded(p.replaceText))
	rt.OnUpload("POST /files/bulk-upload", p.uploadMany)
	rt.On("POST /files/bulk-download", decoded(p.downloadMany))
	rt.OnUpload("POST /files/upload-v2", p.uploadOne)
	rt.OnUpload("POST /files/upload", p.uploadOne)
	rt.On("GET /files/download", p.downloadOne)
}

// fileInfo is a file as clients know it.
type fileInfo struct {
	Name        string    `json:"name"`
	Path        string    `json:"path,omitempty"`
	Size        int64     `json:"size"`
	IsDir       bool      `json:"isDir"`
	Mode        string    `json:"mode"`
	Permissions string    `json:"permissions"`
	Owner       string    `json:"owner"`
	Group       string    `json:"group"`
	ModTime     string    `json:"modTime"`
	ModifiedAt  time.Time `json:"modifiedAt"`
}

// viewFile describes a file; of a symbolic link, whether it leads to a directory.
func viewFile(f *sandbox.FileInfo) fileInfo {
	i := fileInfo{
		Name: f.Name, Size: f.Size, IsDir: isDir(f), Owner: f.Owner, Group: f.Group,
		ModTime: f.ModifiedAt.UTC().Format("2006-01-02 15:04:05 -0700 MST"), ModifiedAt: f.ModifiedAt,
	}
	if i.Owner == "" { // of an older agent, which does not send names
		i.Owner, i.Group = strconv.FormatUint(uint64(f.UID), 10), strconv.FormatUint(uint64(f.GID), 10)
	}
	bits, _ := strconv.ParseUint(f.Mode, 8, 12) // the service's own form
	mode := os.FileMode(bits & 0o777)
	for bit, flag := range map[uint64]os.FileMode{0o4000: os.ModeSetuid, 0o2000: os.ModeSetgid, 0o1000: os.ModeSticky} {
		if bits&bit != 0 {
			mode |= flag
		}
	}
	switch f.Type {
	case sandbox.TypeDirectory:
		mode |= os.ModeDir
	case sandbox.TypeSymlink:
		mode |= os.ModeSymlink
	}
	i.Mode = mode.String()
	i.Permissions = "0" + strings.TrimLeft(f.Mode, "0")
	return i
}

func isDir(f *sandbox.FileInfo) bool {
	return f.Type == sandbox.TypeDirectory || f.LinkedFile != nil && f.LinkedFile.Type == sandbox.TypeDirectory
}

// absolute makes a path of a client's absolute: relative ones, and "", begin at the
// working directory.
func absolute(box *sandbox.Sandbox, name string) (string, error) {
	if len(name) > sandbox.MaxPathBytes || strings.IndexByte(name, 0) >= 0 {
		return "", answer.Invalid("the path is longer than %d bytes or holds a NUL byte; give another", sandbox.MaxPathBytes)
	}
	if path.IsAbs(name) {
		return path.Clean(name), nil
	}
	return path.Join("/", box.WorkDir, name), nil
}

// named returns the path that a parameter of a request names; it must be there.
func named(r *http.Request, param string) (string, error) {
	name := r.URL.Query().Get(param)
	if name == "" {
		return "", answer.Invalid("the %s is missing; name it in the query", param)
	}
	return absolute(boxOf(r), name)
}

// aboutFile gives an error about a file the code by which clients recognise it.
func aboutFile(name string, err error) error {
	switch sandbox.CodeOf(err) {
	case sandbox.CodeNotFound:
		return answer.Fail(http.StatusNotFound, answer.FileNotFound, "%s: no such file or directory", name)
	case sandbox.CodeForbidden:
		return answer.Fail(http.StatusForbidden, answer.FileDenied, "%s: %s", name, sandbox.MessageOf(err))
	}
	return err
}

func (p *plane) listFiles(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	dir, err := absolute(boxOf(r), query.Get("path"))
	if err != nil {
		return err
	}
	depth := 1
	if text := query.Get("depth"); text != "" {
		if depth, err = strconv.Atoi(text); err != nil || depth < 1 || depth > sandbox.MaxListDepth {
			return answer.Invalid("depth is %.20q; give 1 to %d", text, sandbox.MaxListDepth)
		}
	}
	found, err := sandbox.All(r.Context(), func(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.FileInfo], error) {
		return p.svc.ListFiles(ctx, boxOf(r).ID, sandbox.ListFilesRequest{Path: dir, Depth: depth, Page: page})
	})
	if err != nil {
		return aboutFile(dir, err)
	}
	all := make([]fileInfo, len(found))
	for i := range found {
		all[i] = viewFile(&found[i])
		if depth > 1 {
			all[i].Path = found[i].Path
		}
	}
	return ok(w, all)
}

func (p *plane) fileInfo(w http.ResponseWriter, r *http.Request) error {
	name, err := named(r, "path")
	if err != nil {
		return err
	}
	f, err := p.svc.StatFile(r.Context(), boxOf(r).ID, name)
	if err != nil {
		return aboutFile(name, err)
	}
	return ok(w, viewFile(f))
}

var octal = lazyregexp.New(`^0?[0-7]{3,4}$`)

func checkMode(mode string) error {
	if mode != "" && !octal.MatchString(mode) {
		return answer.Invalid("mode %.20q is not permission bits in octal; write them as 644", mode)
	}
	return nil
}

// fourDigits writes permission bits as the service wants them.
func fourDigits(mode string) string {
	if mode == "" {
		return ""
	}
	mode = strings.TrimLeft(mode, "0")
	return strings.Repeat("0", max(0, 4-len(mode))) + mode
}

func (p *plane) makeFolder(w http.ResponseWriter, r *http.Request) error {
	name, err := named(r, "path")
	if err != nil {
		return err
	}
	mode := r.URL.Query().Get("mode")
	if err := checkMode(mode); err != nil {
		return err
	}
	if _, err := p.svc.MakeDir(r.Context(), boxOf(r).ID, sandbox.MakeDirRequest{Path: name, Mode: fourDigits(mode)}); err != nil {
		return aboutFile(name, err)
	}
	return done(w, http.StatusCreated)
}

func (p *plane) deleteFile(w http.ResponseWriter, r *http.Request) error {
	name, err := named(r, "path")
	if err != nil {
		return err
	}
	recursive := false
	if text := r.URL.Query().Get("recursive"); text != "" {
		if recursive, err = strconv.ParseBool(text); err != nil {
			return answer.Invalid("recursive is %.20q; give true or false", text)
		}
	}
	box := boxOf(r).ID
	if !recursive {
		f, err := p.svc.StatFile(r.Context(), box, name)
		if err != nil {
			return aboutFile(name, err)
		}
		if f.Type == sandbox.TypeDirectory {
			return answer.Invalid("%s is a directory; delete it with recursive", name)
		}
	}
	if err := p.svc.DeleteFile(r.Context(), box, name, recursive); err != nil {
		return aboutFile(name, err)
	}
	return done(w, http.StatusNoContent)
}

func (p *plane) moveFile(w http.ResponseWriter, r *http.Request) error {
	from, err := named(r, "source")
	if err != nil {
		return err
	}
	to, err := named(r, "destination")
	if err != nil {
		return err
	}
	if _, err := p.svc.MoveFile(r.Context(), boxOf(r).ID, sandbox.MoveFileRequest{From: from, To: to, Overwrite: true}); err != nil {
		return aboutFile(from, err)
	}
	return done(w, http.StatusOK)
}

var account = lazyregexp.New(`^[A-Za-z0-9_.][A-Za-z0-9_.-]{0,63}$`)

// setPermissions changes mode and owner with the sandbox's own programs.
func (p *plane) setPermissions(w http.ResponseWriter, r *http.Request) error {
	name, err := named(r, "path")
	if err != nil {
		return err
	}
	query := r.URL.Query()
	mode, owner, group := query.Get("mode"), query.Get("owner"), query.Get("group")
	if err := checkMode(mode); err != nil {
		return err
	}
	for _, who := range []string{owner, group} {
		if who != "" && !account.MatchString(who) {
			return answer.Invalid("%.64q is not the name of a user or group", who)
		}
	}
	if _, err := p.svc.StatFile(r.Context(), boxOf(r).ID, name); err != nil {
		return aboutFile(name, err)
	}
	var commands [][]string
	if owner+group != "" {
		who := owner
		if group != "" {
			who += ":" + group
		}
		commands = append(commands, []string{"chown", "--", who, name})
	}
	if mode != "" {
		commands = append(commands, []string{"chmod", "--", mode, name})
	}
	for _, command := range commands {
		out, err := p.tool(r.Context(), boxOf(r).ID, sandbox.ExecRequest{Command: command, User: "root", WorkDir: "/"})
		if err != nil {
			return err
		}
		if out.code != 0 {
			return answer.Invalid("%s", strings.TrimSpace(out.stderr))
		}
	}
	return done(w, http.StatusOK)
}
