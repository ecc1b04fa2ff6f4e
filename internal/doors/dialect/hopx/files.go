package hopx

import (
	"context"
	"io"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// Bounds of a result or an argument, in bytes.
const (
	maxRead  = 8 << 20
	maxWrite = 8 << 20
	// maxText bounds a file's content as JSON, which is longer than the file if the file is
	// not text.
	maxText = 2 * maxRead
)

// maxListed bounds a listing for which the client sets no bound.
const maxListed = 20_000

// roots are where file tools work, besides the sandbox's default directory. This is the
// product's rule to keep agents to their own files. It is no protection, since commands
// reach all files of the sandbox.
var roots = []string{home, "/tmp", "/app"}

type pathArgs struct {
	target
	Path string `json:"path"`
}

// file opens the sandbox of a call, and returns the path in it, which must be below one of
// the roots.
func (in *pathArgs) file(ctx context.Context, c *dialect.Call, route string) (m *vm, p, at string, err error) {
	if m, err = in.open(ctx, c); err != nil {
		return nil, "", "", err
	}
	at = query(route, "path", in.Path)
	p, err = m.allowed(in.Path)
	if err != nil {
		f := failed(true, m.url+at, err)
		f.path = in.Path
		if f.status = 400; sandbox.CodeOf(err) == sandbox.CodeForbidden {
			f.status, f.code = 403, "PATH_NOT_ALLOWED"
		}
		return nil, "", "", f
	}
	return m, p, at, nil
}

func (m *vm) allowed(p string) (string, error) {
	switch {
	case p == "":
		return "", dialect.Invalid("path is empty; give one below %s or /tmp", home)
	case strings.Contains(p, "\x00"):
		return "", dialect.Invalid("path has a NUL byte; leave it out")
	case !path.IsAbs(p):
		p = path.Join(m.box.WorkDir, p)
	}
	p = path.Clean(p)
	for _, root := range append([]string{m.box.WorkDir}, roots...) {
		if root != "/" && (p == root || strings.HasPrefix(p, root+"/")) {
			return p, nil
		}
	}
	return "", sandbox.Errorf(sandbox.CodeForbidden, "path %s is not allowed; file tools work below %s and /tmp, run_command reaches the rest", clip.Text(p, maxShown), home)
}

// failedFile returns the failure of a request about a file.
func (m *vm) failedFile(ctx context.Context, at, p string, err error) error {
	wrapped := m.missing(ctx, at, "FILE_NOT_FOUND", err)
	if f, ok := wrapped.(*failure); ok {
		f.path = p
		if f.code == "FILE_NOT_FOUND" {
			f.err = sandbox.Errorf(sandbox.CodeNotFound, "File not found: %s", clip.Text(p, maxShown))
		}
	}
	return wrapped
}

// fileRead is a file's content.
type fileRead struct {
	Content string `json:"content"`
	Path    string `json:"path"`
	Size    int64  `json:"size"`
}

func readFile(ctx context.Context, c *dialect.Call, in *pathArgs) (*fileRead, error) {
	m, p, at, err := in.file(ctx, c, "/files/read")
	if err != nil {
		return nil, err
	}
	m.Status("reading")
	data, err := m.read(ctx, p, maxRead+1)
	if err == nil && len(data) > maxRead {
		err = sandbox.Errorf(sandbox.CodeTooLarge, "the file has over %d bytes; read a part of it with run_command, such as head -c 100000", maxRead)
	}
	content := strings.ToValidUTF8(string(data), "\uFFFD")
	if err == nil && encoded(content) > maxText {
		err = sandbox.Errorf(sandbox.CodeTooLarge, "the file is not text, and too large as such; read it with run_command, such as base64 or head -c 100000")
	}
	if err != nil {
		return nil, m.failedFile(ctx, at, in.Path, err)
	}
	return &fileRead{Content: content, Path: in.Path, Size: int64(len(data))}, nil
}

// encoded returns the approximate length of a text as JSON: a control character takes six
// bytes.
func encoded(s string) int {
	n := len(s)
	for i := range len(s) {
		if s[i] < ' ' && s[i] != '\n' && s[i] != '\r' && s[i] != '\t' {
			n += 5
		}
	}
	return n
}

type writeArgs struct {
	pathArgs
	Content string `json:"content"`
}

func writeFile(ctx context.Context, c *dialect.Call, in *writeArgs) error {
	_, err := in.store(ctx, c, "/files/write", sandbox.WriteFileRequest{}, func() (io.Reader, error) {
		if len(in.Content) > maxWrite {
			return nil, sandbox.Errorf(sandbox.CodeTooLarge, "content has %d bytes; write at most %d at once, and more in parts with run_command", len(in.Content), maxWrite)
		}
		return strings.NewReader(in.Content), nil
	})
	return err
}

// store writes a file and its missing directories. req has the options; content is called
// once the path is known to be allowed.
func (in *pathArgs) store(ctx context.Context, c *dialect.Call, route string, req sandbox.WriteFileRequest, content func() (io.Reader, error)) (*sandbox.FileInfo, error) {
	m, p, at, err := in.file(ctx, c, route)
	if err != nil {
		return nil, err
	}
	m.Status("writing")
	req.Path, req.MakeParents = p, true
	var info *sandbox.FileInfo
	from, err := content()
	if err == nil {
		info, err = m.Service.WriteFile(ctx, m.id, req, from)
	}
	if err != nil {
		return nil, m.failedFile(ctx, at, in.Path, err)
	}
	return info, nil
}

// fileInfo is a file in a listing, with the field names of both generations of clients.
type fileInfo struct {
	Name        string `json:"name"`
	Path        string `json:"path"`
	Size        int64  `json:"size"`
	IsDirectory bool   `json:"is_directory"`
	IsDir       bool   `json:"is_dir"`
	ModifiedAt  string `json:"modified_time"`
	Modified    string `json:"modified"`
	Permissions string `json:"permissions"`
}

func fileInfoOf(f *sandbox.FileInfo) fileInfo {
	dir := f.Type == sandbox.TypeDirectory
	return fileInfo{
		Name: f.Name, Path: f.Path, Size: f.Size, IsDirectory: dir, IsDir: dir,
		ModifiedAt: dialect.Stamp(f.ModifiedAt), Modified: dialect.Stamp(f.ModifiedAt), Permissions: permissions(f),
	}
}

// permissions returns a file's permissions as ls shows them.
func permissions(f *sandbox.FileInfo) string {
	kind := map[sandbox.FileType]string{sandbox.TypeDirectory: "d", sandbox.TypeSymlink: "l", sandbox.TypeFile: "-"}[f.Type]
	if kind == "" {
		kind = "?"
	}
	bits, err := strconv.ParseUint(f.Mode, 8, 32)
	if err != nil {
		return kind + "?????????"
	}
	out := []byte(kind)
	for i := range 9 {
		if bits&(1<<(8-i)) == 0 {
			out = append(out, '-')
		} else {
			out = append(out, "rwx"[i%3])
		}
	}
	return string(out)
}

type fileListArgs struct {
	pathArgs
	Max int64 `json:"max_results"`
}

// listFiles returns the entries of a directory, up to the requested number, and how many
// there are.
func listFiles(ctx context.Context, c *dialect.Call, in *fileListArgs) (*some[fileInfo], error) {
	m, p, at, err := in.file(ctx, c, "/files/list")
	if err != nil {
		return nil, err
	}
	m.Status("listing")
	out := &some[fileInfo]{list: []fileInfo{}}
	for f, err := range sandbox.Each(ctx, func(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.FileInfo], error) {
		return m.Service.ListFiles(ctx, m.id, sandbox.ListFilesRequest{Path: p, Depth: 1, Page: page})
	}) {
		if sandbox.CodeOf(err) == sandbox.CodeNotFound && p == home && out.total == 0 {
			break // it exists in every sandbox of the product
		}
		if err == nil && len(out.list) == maxListed && (in.Max <= 0 || in.Max > maxListed) {
			err = sandbox.Errorf(sandbox.CodeTooLarge, "the directory has over %d entries; give max_results, or look with run_command", maxListed)
		}
		if err != nil {
			return nil, m.failedFile(ctx, at, in.Path, err)
		}
		if out.total++; in.Max <= 0 || int64(len(out.list)) < in.Max {
			out.list = append(out.list, fileInfoOf(&f))
		}
	}
	return out, nil
}

func fileExists(ctx context.Context, c *dialect.Call, in *pathArgs) (bool, error) {
	m, p, at, err := in.file(ctx, c, "/files/exists")
	if err != nil {
		return false, err
	}
	_, err = m.Service.StatFile(ctx, m.id, p)
	switch sandbox.CodeOf(err) {
	case "":
		return true, nil
	case sandbox.CodeNotFound, sandbox.CodeInvalid: // such as a path below a file
	default:
		return false, m.failedFile(ctx, at, in.Path, err)
	}
	// The sandbox may be what is missing.
	if f, ok := m.missing(ctx, at, "FILE_NOT_FOUND", err).(*failure); ok && f.code == "SANDBOX_NOT_FOUND" {
		return false, f
	}
	return false, nil
}

func removeFile(ctx context.Context, c *dialect.Call, in *pathArgs) error {
	m, p, at, err := in.file(ctx, c, "/files/remove")
	if err != nil {
		return err
	}
	m.Status("removing")
	if err := m.Service.DeleteFile(ctx, m.id, p, true); err != nil {
		return m.failedFile(ctx, at, in.Path, err)
	}
	return nil
}

func makeDir(ctx context.Context, c *dialect.Call, in *pathArgs) error {
	m, p, at, err := in.file(ctx, c, "/files/mkdir")
	if err != nil {
		return err
	}
	if _, err := m.Service.MakeDir(ctx, m.id, sandbox.MakeDirRequest{Path: p}); err != nil {
		return m.failedFile(ctx, at, in.Path, err)
	}
	return nil
}

// fileDone makes a function that returns the result of a change to a file.
func fileDone(message string) func(*pathArgs, struct{}) any {
	return func(in *pathArgs, _ struct{}) any {
		return object(pair{"message", message}, pair{"path", in.Path}, pair{"success", true}, pair{"timestamp", dialect.Stamp(time.Now())})
	}
}
