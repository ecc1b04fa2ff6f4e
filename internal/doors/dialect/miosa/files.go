package miosa

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxRead is the size of the largest file that a result returns, and maxWrite that of
	// the largest that an argument holds, in bytes.
	maxRead  = 5 << 20
	maxWrite = 8 << 20
	// maxText bounds a file's content as JSON, which is longer than the file if the file is
	// not text.
	maxText = 2 * maxRead
	// maxEntries bounds a listing, and maxPaths the total length of its paths, in bytes.
	maxEntries = 5000
	maxPaths   = 1 << 20
	// treeDepth is the default depth of a recursive listing.
	treeDepth = 3
)

// absolute refuses a path that is not absolute.
func absolute(name, p string) error {
	if !path.IsAbs(p) {
		return dialect.Invalid("%s must be absolute (begin with /): %s", name, quoted(p))
	}
	return nil
}

// target returns the sandbox of a call on a file.
func (c *call) target(id, name, p string) (string, error) {
	if err := absolute(name, p); err != nil {
		return "", err
	}
	return c.sandbox(id)
}

type writeArgs struct {
	Sandbox  string `json:"sandbox_id"`
	Path     string `json:"path"`
	Content  string `json:"content"`
	Encoding string `json:"encoding"`
}

// fileWritten reports a file that was written.
type fileWritten struct {
	Path string `json:"path"`
	Size int64  `json:"size_bytes"`
}

func writeFile(ctx context.Context, c *call, in writeArgs) (*mcp.CallToolResult, error) {
	data, err := in.data()
	if err != nil {
		return nil, err
	}
	id, err := c.target(in.Sandbox, "path", in.Path)
	if err != nil {
		return nil, err
	}
	if len(data) > maxWrite {
		return nil, sandbox.Errorf(sandbox.CodeTooLarge, "content has %d bytes and may have %d; write it in parts with sandbox_exec", len(data), maxWrite)
	}
	c.Status("writing")
	info, err := c.Service.WriteFile(ctx, id, sandbox.WriteFileRequest{Path: in.Path, MakeParents: true}, bytes.NewReader(data))
	if err != nil {
		return nil, c.about(ctx, id, err)
	}
	return result(fileWritten{info.Path, int64(len(data))})
}

func (in *writeArgs) data() ([]byte, error) {
	if in.Encoding != "base64" {
		return []byte(in.Content), nil
	}
	data, err := base64.StdEncoding.DecodeString(in.Content)
	if err != nil {
		return nil, dialect.Invalid("content is not base64: %v", err)
	}
	return data, nil
}

type readArgs struct {
	Sandbox  string `json:"sandbox_id"`
	Path     string `json:"path"`
	Encoding string `json:"encoding"`
}

// fileRead is a file's content.
type fileRead struct {
	Path    string `json:"path"`
	Content string `json:"content"`
	Size    int    `json:"size"`
	// Encoding is set for base64.
	Encoding string `json:"encoding,omitempty"`
	// Lossy is set if bytes that are not text were replaced.
	Lossy bool `json:"lossy,omitempty"`
}

func readFile(ctx context.Context, c *call, in readArgs) (*mcp.CallToolResult, error) {
	id, err := c.target(in.Sandbox, "path", in.Path)
	if err != nil {
		return nil, err
	}
	c.Status("reading")
	data, at, err := dialect.ReadFile(ctx, c.Service, id, in.Path, maxRead+1)
	if err != nil {
		return nil, c.about(ctx, id, err)
	}
	if len(data) > maxRead {
		return nil, sandbox.Errorf(sandbox.CodeTooLarge, "%s is larger than %d bytes; read a part of it with sandbox_exec, such as head -c 65536", quoted(in.Path), maxRead)
	}
	out := fileRead{Path: at, Size: len(data)}
	if in.Encoding == "base64" {
		out.Content, out.Encoding = base64.StdEncoding.EncodeToString(data), in.Encoding
	} else {
		out.Content, out.Lossy = text(data), !utf8.Valid(data)
	}
	res, err := result(out)
	if err != nil {
		return nil, err
	}
	if len(res.Content[0].(*mcp.TextContent).Text) > maxText {
		return nil, sandbox.Errorf(sandbox.CodeTooLarge, "%s is not text; read it with encoding base64", quoted(in.Path))
	}
	res.StructuredContent = nil // the bytes are sent once
	return res, nil
}

type listFilesArgs struct {
	Sandbox   string  `json:"sandbox_id"`
	Path      string  `json:"path"`
	Recursive bool    `json:"recursive"`
	Depth     float64 `json:"depth"`
}

// entry is an entry of a directory.
type entry struct {
	Name       string `json:"name"`
	Path       string `json:"path"`
	Size       int64  `json:"size"`
	IsDir      bool   `json:"is_dir"`
	Type       string `json:"type"`
	ModifiedAt string `json:"modified_at"`
}

// directory is a listing.
type directory struct {
	Path    string  `json:"path"`
	Entries []entry `json:"entries"`
	// Truncated is set if there are more entries.
	Truncated bool `json:"truncated,omitempty"`
}

func listFiles(ctx context.Context, c *call, in listFilesArgs) (*mcp.CallToolResult, error) {
	dir := cmp.Or(in.Path, ".") // the working directory
	if in.Path != "" {
		if err := absolute("path", in.Path); err != nil {
			return nil, err
		}
	}
	id, err := c.sandbox(in.Sandbox)
	if err != nil {
		return nil, err
	}
	c.Status("listing")
	info, err := c.Service.StatFile(ctx, id, dir)
	if err != nil {
		return nil, c.about(ctx, id, err)
	}
	out := directory{Path: info.Path, Entries: []entry{}}
	req := sandbox.ListFilesRequest{Path: dir, Depth: 1, Page: sandbox.Page{Limit: sandbox.MaxPageSize}}
	if in.Recursive {
		req.Depth = cmp.Or(int(in.Depth), treeDepth)
	}
	for size := 0; len(out.Entries) < maxEntries && size < maxPaths; {
		list, err := c.Service.ListFiles(ctx, id, req)
		if err != nil {
			return nil, c.about(ctx, id, err)
		}
		for i := range list.Items {
			out.Entries = append(out.Entries, entryOf(&list.Items[i]))
			size += len(list.Items[i].Path)
		}
		if req.Cursor = list.NextCursor; req.Cursor == "" {
			break
		}
	}
	out.Truncated = req.Cursor != "" || len(out.Entries) > maxEntries
	out.Entries = out.Entries[:min(len(out.Entries), maxEntries)]
	return result(out)
}

func entryOf(f *sandbox.FileInfo) entry {
	e := entry{Name: f.Name, Path: f.Path, Size: f.Size, IsDir: f.Type == sandbox.TypeDirectory, Type: string(f.Type), ModifiedAt: dialect.Stamp(f.ModifiedAt)}
	if e.IsDir {
		e.Type = "dir"
	}
	return e
}

type pathArgs struct {
	Sandbox string `json:"sandbox_id"`
	Path    string `json:"path"`
}

// fileDeleted reports a file that was deleted.
type fileDeleted struct {
	Path    string `json:"path"`
	Deleted bool   `json:"deleted"`
}

func deleteFile(ctx context.Context, c *call, in pathArgs) (*mcp.CallToolResult, error) {
	id, err := c.target(in.Sandbox, "path", in.Path)
	if err != nil {
		return nil, err
	}
	c.Status("deleting")
	if err := c.Service.DeleteFile(ctx, id, in.Path, true); err != nil {
		return nil, c.about(ctx, id, err)
	}
	return result(fileDeleted{path.Clean(in.Path), true})
}

type moveArgs struct {
	Sandbox string `json:"sandbox_id"`
	From    string `json:"from"`
	To      string `json:"to"`
}

// fileMoved reports the new path of a file.
type fileMoved struct {
	From string `json:"from"`
	To   string `json:"to"`
}

func moveFile(ctx context.Context, c *call, in moveArgs) (*mcp.CallToolResult, error) {
	if err := absolute("from", in.From); err != nil {
		return nil, err
	}
	id, err := c.target(in.Sandbox, "to", in.To)
	if err != nil {
		return nil, err
	}
	c.Status("moving")
	req := sandbox.MoveFileRequest{From: in.From, To: in.To, Overwrite: true}
	_, err = c.Service.MoveFile(ctx, id, req)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		err = c.moveWithParents(ctx, id, req, err)
	}
	if err != nil {
		return nil, c.about(ctx, id, err)
	}
	return result(fileMoved{path.Clean(in.From), path.Clean(in.To)})
}

// moveWithParents makes the destination's directory, if it was that which was missing, and
// moves again.
func (c *call) moveWithParents(ctx context.Context, id string, req sandbox.MoveFileRequest, moved error) error {
	if _, err := c.Service.StatFile(ctx, id, req.From); err != nil {
		return moved
	}
	if _, err := c.Service.MakeDir(ctx, id, sandbox.MakeDirRequest{Path: path.Dir(path.Clean(req.To))}); err != nil {
		return err
	}
	_, err := c.Service.MoveFile(ctx, id, req)
	return err
}

// text returns p as text, with U+FFFD for bytes that are not UTF-8.
func text(p []byte) string { return strings.ToValidUTF8(string(p), "\uFFFD") }

// count returns a number with its noun.
func count(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
