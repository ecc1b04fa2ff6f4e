package superserve

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/superserve/terms"
	"github.com/cove-sh/cove/sandbox"
)

// Bounds of results and arguments, in bytes.
const (
	maxRead  = 1 << 20
	maxWrite = 8 << 20
	maxZip   = 10 << 20
	// maxEntries bounds a listing.
	maxEntries = 20_000
)

// checkPath refuses relative paths and those with "..".
func checkPath(p string) error {
	switch {
	case !strings.HasPrefix(p, "/"):
		return dialect.Invalid(`Path must start with "/": %s`, clip.Text(p, maxShown))
	case slices.Contains(strings.Split(p, "/"), ".."):
		return dialect.Invalid(`Path must not contain ".." segments: %s`, clip.Text(p, maxShown))
	}
	return nil
}

type readArgs struct {
	inSandbox
	Path     string `json:"path"`
	Encoding string `json:"encoding"`
}

func readFile(ctx context.Context, c *dialect.Call, in readArgs) (*mcp.CallToolResult, error) {
	if err := checkPath(in.Path); err != nil {
		return nil, err
	}
	c.Status("reading")
	data, _, err := dialect.ReadFile(ctx, c.Service, in.Sandbox, in.Path, maxRead+1)
	if err != nil {
		return nil, err
	}
	if len(data) > maxRead {
		p := clip.Text(in.Path, maxShown)
		return refuse("%s is larger than the 1 MiB sandbox_files_read limit. Use sandbox_exec with `head -c 1048576 %s` for its beginning, or `head -c 1048576 %s | base64` if it is binary, or Cove's command line for all of it.", p, p, p)
	}
	content := toText(bytes.TrimPrefix(data, []byte("\ufeff")))
	if in.Encoding == "base64" {
		content = base64.StdEncoding.EncodeToString(data)
	}
	return dialect.Text(fmt.Sprintf("read %d bytes from %s\n%s", len(data), in.Path, content),
		dialect.ObjectOf("path", in.Path, "content", content, "encoding", in.Encoding, "bytes", len(data))), nil
}

type writeArgs struct {
	inSandbox
	Path     string `json:"path"`
	Content  string `json:"content"`
	Encoding string `json:"encoding"`
}

func writeFile(ctx context.Context, c *dialect.Call, in writeArgs) (*mcp.CallToolResult, error) {
	if err := checkPath(in.Path); err != nil {
		return nil, err
	}
	data := []byte(in.Content)
	if in.Encoding == "base64" {
		data = decode(in.Content)
	}
	if len(data) > maxWrite {
		return refuse("Refusing to write %d bytes to %s: inline content is limited to 8 MiB. Use Cove's command line, or append in parts with sandbox_exec.", len(data), clip.Text(in.Path, maxShown))
	}
	c.Status("writing")
	_, err := c.Service.WriteFile(ctx, in.Sandbox, sandbox.WriteFileRequest{Path: in.Path, MakeParents: true}, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return dialect.Text(fmt.Sprintf("wrote %d bytes to %s", len(data), in.Path), dialect.ObjectOf("path", in.Path, "bytes", len(data))), nil
}

// decode reads base64 of either alphabet up to the padding, and skips all other characters.
// Like the product's, it never fails.
func decode(s string) []byte {
	s, _, _ = strings.Cut(s, "=")
	clean := make([]byte, 0, len(s))
	for i := range len(s) {
		switch b := s[i]; {
		case b == '-':
			clean = append(clean, '+')
		case b == '_':
			clean = append(clean, '/')
		case b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z', b >= '0' && b <= '9', b == '+', b == '/':
			clean = append(clean, b)
		}
	}
	if len(clean)%4 == 1 {
		clean = clean[:len(clean)-1] // six bits do not make a byte
	}
	out := make([]byte, base64.RawStdEncoding.DecodedLen(len(clean)))
	n, _ := base64.RawStdEncoding.Decode(out, clean) // all of the alphabet
	return out[:n]
}

type pathArgs struct {
	inSandbox
	Path string `json:"path"`
}

// entry is an entry of a directory.
type entry struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Size     int64  `json:"size"`
	Modified string `json:"modified,omitempty"`
}

func listFiles(ctx context.Context, c *dialect.Call, in pathArgs) (*mcp.CallToolResult, error) {
	switch {
	case !strings.HasPrefix(in.Path, "/"):
		return nil, dialect.Invalid(`Path must be absolute (start with "/"): %s`, clip.Text(in.Path, maxShown))
	case strings.Contains(in.Path, "\x00"):
		return nil, dialect.Invalid("Path must not contain NUL bytes: %s", dialect.OneLine(clip.Text(in.Path, maxShown)))
	}
	if err := checkPath(in.Path); err != nil {
		return nil, err
	}
	c.Status("listing")
	entries := []entry{}
	lines := []string{in.Path}
	for f, err := range sandbox.Each(ctx, func(ctx context.Context, p sandbox.Page) (*sandbox.List[sandbox.FileInfo], error) {
		return c.Service.ListFiles(ctx, in.Sandbox, sandbox.ListFilesRequest{Path: in.Path, Depth: 1, Page: p})
	}) {
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry{Name: f.Name, Type: string(f.Type), Size: f.Size, Modified: dialect.Stamp(f.ModifiedAt)})
		mark := "- "
		if f.Type == sandbox.TypeDirectory {
			mark = "d "
		}
		lines = append(lines, mark+strconv.FormatInt(f.Size, 10)+"\t"+dialect.OneLine(f.Name))
		if len(entries) > maxEntries {
			return nil, dialect.Invalid("%s has over %d entries; look at a part of it with sandbox_exec, such as ls %s | head", clip.Text(in.Path, maxShown), maxEntries, clip.Text(in.Path, maxShown))
		}
	}
	if len(entries) == 0 {
		lines = append(lines, "(empty directory)")
	}
	return dialect.Text(strings.Join(lines, "\n"), dialect.ObjectOf("path", in.Path, "entries", entries)), nil
}

func downloadDir(ctx context.Context, c *dialect.Call, in pathArgs) (*mcp.CallToolResult, error) {
	if err := checkPath(in.Path); err != nil {
		return nil, err
	}
	c.Status("making a zip file")
	data, err := zipOf(ctx, c, in, c.MaxBytes(maxZip))
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeTooLarge:
		return refuse("%s zips to more than the limit of 10 MiB (7.4 MiB over stdio). Download a smaller subdirectory, read single files with sandbox_files_read, or use Cove's command line for all of it.", clip.Text(in.Path, maxShown))
	case err != nil:
		return nil, err
	}
	return dialect.Text(fmt.Sprintf("zipped %s: %d bytes, base64 in the structured content", in.Path, len(data)), dialect.ObjectOf(
		"path", in.Path, "format", "zip", "encoding", "base64", "bytes", len(data), "content", base64.StdEncoding.EncodeToString(data))), nil
}

// zipOf returns a directory as a zip file of at most limit bytes.
func zipOf(ctx context.Context, c *dialect.Call, in pathArgs, limit int64) ([]byte, error) {
	r, err := c.Service.ArchiveDir(ctx, in.Sandbox, in.Path, limit)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) <= limit {
		var out bytes.Buffer
		err = terms.Rearchive(&out, in.Path, bytes.NewReader(data), int64(len(data)))
		data = out.Bytes()
	}
	if err == nil && int64(len(data)) > limit {
		err = sandbox.Errorf(sandbox.CodeTooLarge, "the archive is over %d bytes", limit)
	}
	return data, err
}
