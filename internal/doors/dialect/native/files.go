package native

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// The encodings of content.
const (
	encodingText   = "text"
	encodingBase64 = "base64"
	encodingImage  = "image"
)

type readArgs struct {
	sandboxRef
	sandbox.ReadFileRequest
	Encoding string `json:"encoding,omitempty"`
}

type readResult struct {
	Path       string `json:"path"`
	SizeBytes  int64  `json:"size_bytes"`
	Encoding   string `json:"encoding"`
	Content    string `json:"content"`
	MIMEType   string `json:"mime_type,omitempty"`
	Offset     int64  `json:"offset"`
	NextOffset int64  `json:"next_offset"`
	Truncated  bool   `json:"truncated"`
	URI        string `json:"uri"`
}

func readFile(ctx context.Context, c *dialect.Call, in readArgs) (*reply[readResult], error) {
	limit := in.Limit
	switch {
	case limit > 0:
	case in.Encoding == encodingImage:
		limit = maxRead
	default:
		limit = defaultRead
	}
	f, err := c.Service.ReadFile(ctx, in.Sandbox, sandbox.ReadFileRequest{Path: in.Path, Offset: in.Offset, Limit: limit})
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if f.Info.Size > maxRead && (in.Limit == 0 || in.Encoding == encodingImage) {
		return nil, sandbox.Errorf(sandbox.CodeTooLarge,
			"%s has %d bytes, over 1 MiB; read it in slices with offset and limit (at most %d), or search it with sandbox_exec",
			f.Info.Path, f.Info.Size, maxRead)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return nil, err
	}
	res := readResult{
		Path: f.Info.Path, SizeBytes: f.Info.Size, Encoding: in.Encoding, Offset: in.Offset, URI: fileURI(in.Sandbox, f.Info.Path),
	}
	return finishRead(res, data)
}

func finishRead(res readResult, data []byte) (*reply[readResult], error) {
	if res.Encoding == encodingText {
		var err error
		if data, err = wholeText(&res, data); err != nil {
			return nil, err
		}
		if !utf8.Valid(data) || bytes.ContainsRune(data, 0) {
			return nil, invalid("%s is not UTF-8 text there; read it with encoding base64, or image if it is one", res.Path)
		}
	}
	res.NextOffset = res.Offset + int64(len(data))
	res.Truncated = res.NextOffset < res.SizeBytes
	switch res.Encoding {
	case encodingImage:
		res.MIMEType = imageType(data)
		if res.MIMEType == "" || res.Offset != 0 || res.Truncated {
			return nil, invalid("%s is not a whole PNG, JPEG, GIF or WebP image; read it with encoding base64", res.Path)
		}
		return answer(fmt.Sprintf("%s (%s, %d bytes)", res.Path, res.MIMEType, res.SizeBytes), res,
			&mcp.ImageContent{Data: data, MIMEType: res.MIMEType})
	case encodingBase64:
		res.Content = base64.StdEncoding.EncodeToString(data)
	default:
		res.Content = string(data)
	}
	if !res.Truncated {
		return answer(res.Content, res)
	}
	return answer(res.Content, res, &mcp.TextContent{Text: fmt.Sprintf(
		"[bytes %d to %d of %d; read on with offset %d]", res.Offset, res.NextOffset, res.SizeBytes, res.NextOffset)})
}

// wholeText trims a slice of a text to whole characters.
func wholeText(res *readResult, data []byte) ([]byte, error) {
	if res.Offset > 0 {
		rest := clip.TrimStart(data)
		res.Offset += int64(len(data) - len(rest))
		data = rest
	}
	if res.Offset+int64(len(data)) >= res.SizeBytes {
		return data, nil
	}
	cut := clip.TrimEnd(data)
	if len(cut) == 0 && len(data) > 0 {
		return nil, invalid("limit is smaller than the character at offset %d; use at least %d", res.Offset, utf8.UTFMax)
	}
	return cut, nil
}

type writeArgs struct {
	sandboxRef
	sandbox.WriteFileRequest
	Content  string `json:"content"`
	Encoding string `json:"encoding,omitempty"`
}

type writeResult struct {
	fileView
	URI string `json:"uri"`
}

func writeFile(ctx context.Context, c *dialect.Call, in writeArgs) (*reply[writeResult], error) {
	data := []byte(in.Content)
	if in.Encoding == encodingBase64 {
		var err error
		if data, err = base64.StdEncoding.DecodeString(in.Content); err != nil {
			return nil, invalid("content is not base64 (standard alphabet, padded); nothing was written")
		}
	}
	if len(data) > maxWrite {
		return nil, sandbox.Errorf(sandbox.CodeTooLarge, "content has %d bytes, over 8 MiB; write it in parts with append", len(data))
	}
	info, err := c.Service.WriteFile(ctx, in.Sandbox, in.WriteFileRequest, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	uri := fileURI(in.Sandbox, info.Path)
	return answer(fmt.Sprintf("Wrote %s to %s (%s now).", plural(int64(len(data)), "byte"), info.Path, plural(info.Size, "byte")), writeResult{viewFile(info), uri},
		&mcp.ResourceLink{URI: uri, Name: info.Name, Title: info.Path, Size: &info.Size})
}

// plural formats a number of things.
func plural(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	if strings.HasSuffix(thing, "x") {
		thing += "e"
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

type editArgs struct {
	sandboxRef
	sandbox.EditFileRequest
}

type editResult struct {
	File         fileView `json:"file"`
	Replacements int      `json:"replacements"`
}

func editFile(ctx context.Context, c *dialect.Call, in editArgs) (*reply[editResult], error) {
	r, err := c.Service.EditFile(ctx, in.Sandbox, in.EditFileRequest)
	if err != nil {
		return nil, err
	}
	return answer(fmt.Sprintf("Made %s in %s (%s now).", plural(int64(r.Replacements), "replacement"), r.File.Path, plural(r.File.Size, "byte")),
		editResult{viewFile(&r.File), r.Replacements})
}

type fileListArgs struct {
	sandboxRef
	sandbox.ListFilesRequest
}

type filePage struct {
	Files []fileView `json:"files"`
	nextPage
}

func listFiles(ctx context.Context, c *dialect.Call, in fileListArgs) (*reply[filePage], error) {
	var out filePage
	return fitPage(in.Limit, &out, func(limit int) error {
		in.Limit = limit
		list, err := c.Service.ListFiles(ctx, in.Sandbox, in.ListFilesRequest)
		out.Files, out.nextPage = views(list, viewFile)
		return err
	})
}

func (p filePage) text() string {
	var b strings.Builder
	for _, f := range p.Files {
		fmt.Fprintf(&b, "%s %9d %s %s", f.Mode, f.SizeBytes, stamp(f.ModifiedAt), f.Path)
		switch {
		case f.Type == sandbox.TypeDirectory:
			b.WriteByte('/')
		case f.SymlinkTarget != "":
			b.WriteString(" -> " + f.SymlinkTarget)
		}
		b.WriteByte('\n')
	}
	return p.list(b.String(), "The directory is empty.")
}

type moveArgs struct {
	sandboxRef
	sandbox.MoveFileRequest
}

func moveFile(ctx context.Context, c *dialect.Call, in moveArgs) (*reply[fileView], error) {
	info, err := c.Service.MoveFile(ctx, in.Sandbox, in.MoveFileRequest)
	if err != nil {
		return nil, err
	}
	return answer("Moved to "+info.Path+".", viewFile(info))
}

type deleteArgs struct {
	sandboxRef
	Path      string `json:"path"`
	Recursive bool   `json:"recursive,omitempty"`
}

func deleteFile(ctx context.Context, c *dialect.Call, in deleteArgs) (*reply[deleted], error) {
	err := c.Service.DeleteFile(ctx, in.Sandbox, in.Path, in.Recursive)
	return done(err, "Deleted "+in.Path+".", deleted{in.Path})
}

// fileView is a file in a result.
type fileView struct {
	Path          string           `json:"path"`
	Type          sandbox.FileType `json:"type"`
	SizeBytes     int64            `json:"size_bytes"`
	Mode          string           `json:"mode"`
	ModifiedAt    time.Time        `json:"modified_at"`
	SymlinkTarget string           `json:"symlink_target,omitempty"`
}

func viewFile(f *sandbox.FileInfo) fileView {
	v := project[fileView](f)
	if f.Type != sandbox.TypeDirectory { // the size of a directory depends on the file system
		v.SizeBytes = f.Size
	}
	return v
}
