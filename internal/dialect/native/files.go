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

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// The encodings of content.
const (
	encodingText   = "text"
	encodingBase64 = "base64"
	encodingImage  = "image"
)

type readArgs struct {
	Sandbox  string `json:"sandbox"`
	Path     string `json:"path"`
	Encoding string `json:"encoding"`
	Offset   int64  `json:"offset"`
	Limit    int64  `json:"limit"`
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

func fileRead() dialect.Tool {
	return dialect.New(toolsetFiles, &mcp.Tool{
		Name:  "file_read",
		Title: "Read a file",
		Description: "Read a file of a sandbox. Without limit you get the first 64 KiB; truncated and next_offset then say how to read on. " +
			"A file over 1 MiB is refused unless you give a limit (a slice of at most 1 MiB). " +
			"Use encoding base64 for binary files and image to look at a PNG, JPEG, GIF or WebP file.",
		Annotations: annotations("Read a file", true, false, true, false),
		InputSchema: input(
			sandboxArg(),
			pathArg("path", "The file; a relative path starts at the sandbox's working directory."),
			opt("encoding", with(oneOf("How to return the content.", encodingText, encodingBase64, encodingImage), encodingText)),
			opt("offset", with(integer("First byte to read.", 0, maxOffset), 0)),
			opt("limit", integer("Most bytes to read.", 1, maxRead)),
		),
		OutputSchema: output(
			req("path", text("")),
			req("size_bytes", count("Size of the whole file.")),
			req("encoding", oneOf("", encodingText, encodingBase64, encodingImage)),
			req("content", text("The content; empty for an image, which is a block of its own.")),
			opt("mime_type", text("")),
			req("offset", count("")),
			req("next_offset", count("Give it as offset to read on.")),
			req("truncated", boolean("The file goes on after this slice.")),
			req("uri", text("The file as a resource.")),
		),
	}, runRead)
}

func runRead(ctx context.Context, c *dialect.Call, in readArgs) (*mcp.CallToolResult, error) {
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

func finishRead(res readResult, data []byte) (*mcp.CallToolResult, error) {
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
		out := dialect.Text(fmt.Sprintf("%s (%s, %d bytes)", res.Path, res.MIMEType, res.SizeBytes), res)
		out.Content = append(out.Content, &mcp.ImageContent{Data: data, MIMEType: res.MIMEType})
		return out, nil
	case encodingBase64:
		res.Content = base64.StdEncoding.EncodeToString(data)
	default:
		res.Content = string(data)
	}
	out := dialect.Text(res.Content, res)
	if res.Truncated {
		out.Content = append(out.Content, &mcp.TextContent{Text: fmt.Sprintf(
			"[bytes %d to %d of %d; read on with offset %d]", res.Offset, res.NextOffset, res.SizeBytes, res.NextOffset)})
	}
	return out, nil
}

// wholeText cuts a slice of a text so that it holds whole characters.
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
	Sandbox     string `json:"sandbox"`
	Path        string `json:"path"`
	Content     string `json:"content"`
	Encoding    string `json:"encoding"`
	Mode        string `json:"mode"`
	MakeParents bool   `json:"make_parents"`
	Append      bool   `json:"append"`
	Exclusive   bool   `json:"exclusive"`
	Owner       string `json:"owner"`
}

func fileWrite() dialect.Tool {
	return dialect.New(toolsetFiles, &mcp.Tool{
		Name:  "file_write",
		Title: "Write a file",
		Description: "Write a whole file of up to 8 MiB into a sandbox, replacing what is there, or append to it. " +
			"Readers see the old or the new content, never a part. To change a few lines use file_edit.",
		Annotations: annotations("Write a file", false, true, false, false),
		InputSchema: input(
			sandboxArg(),
			pathArg("path", "The file; a relative path starts at the sandbox's working directory."),
			req("content", text("What to write.")),
			opt("encoding", with(oneOf("How content is given.", encodingText, encodingBase64), encodingText)),
			opt("mode", modeSchema()),
			opt("make_parents", with(boolean("Make missing directories."), true)),
			opt("append", with(boolean("Add to the end of the file."), false)),
			opt("exclusive", with(boolean("Fail with conflict if the file exists."), false)),
			opt("owner", bounded("Owner: a user name or uid[:gid]; the sandbox's user if left out.", 0, 64)),
		),
		OutputSchema: output(concat(fileProps(), []prop{req("uri", text("The file as a resource."))})...),
	}, runWrite)
}

func modeSchema() *jsonschema.Schema {
	s := bounded("Permission bits in octal, such as \"0755\"; those of the file replaced, or 0644, if left out.", 0, 5)
	return s
}

func runWrite(ctx context.Context, c *dialect.Call, in writeArgs) (*mcp.CallToolResult, error) {
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
	info, err := c.Service.WriteFile(ctx, in.Sandbox, sandbox.WriteFileRequest{
		Path: in.Path, Mode: in.Mode, MakeParents: in.MakeParents, Append: in.Append, Exclusive: in.Exclusive, Owner: in.Owner,
	}, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return written(fmt.Sprintf("Wrote %s to %s (%s now).", plural(int64(len(data)), "byte"), info.Path, plural(info.Size, "byte")), in.Sandbox, info), nil
}

// plural is a number of things.
func plural(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	if strings.HasSuffix(thing, "x") {
		thing += "e"
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func written(text, sb string, info *sandbox.FileInfo) *mcp.CallToolResult {
	uri := fileURI(sb, info.Path)
	out := dialect.Text(text, struct {
		fileView
		URI string `json:"uri"`
	}{viewFile(info), uri})
	out.Content = append(out.Content, &mcp.ResourceLink{URI: uri, Name: info.Name, Title: info.Path, Size: &info.Size})
	return out
}

type editArgs struct {
	Sandbox string `json:"sandbox"`
	sandbox.EditFileRequest
}

func fileEdit() dialect.Tool {
	return dialect.New(toolsetFiles, &mcp.Tool{
		Name:  "file_edit",
		Title: "Edit a file",
		Description: "Replace text in a file of a sandbox. old_text must be there exactly once, white space included, unless replace_all is set; " +
			"give enough lines around it to be unique. Files up to 8 MiB.",
		Annotations: annotations("Edit a file", false, true, false, false),
		InputSchema: input(
			sandboxArg(),
			pathArg("path", "The file."),
			req("old_text", bounded("Text to replace, exactly as in the file.", 1, maxRead)),
			req("new_text", bounded("Text to put in its place; empty deletes.", 0, maxRead)),
			opt("replace_all", with(boolean("Replace every occurrence."), false)),
		),
		OutputSchema: output(req("file", object("", fileProps()...)), req("replacements", count(""))),
	}, func(ctx context.Context, c *dialect.Call, in editArgs) (*mcp.CallToolResult, error) {
		r, err := c.Service.EditFile(ctx, in.Sandbox, in.EditFileRequest)
		if err != nil {
			return nil, err
		}
		return dialect.Text(fmt.Sprintf("Made %s in %s (%s now).", plural(int64(r.Replacements), "replacement"), r.File.Path, plural(r.File.Size, "byte")), struct {
			File         fileView `json:"file"`
			Replacements int      `json:"replacements"`
		}{viewFile(&r.File), r.Replacements}), nil
	})
}

type fileListArgs struct {
	Sandbox string `json:"sandbox"`
	Path    string `json:"path"`
	Depth   int    `json:"depth"`
	Limit   int    `json:"limit"`
	Cursor  string `json:"cursor"`
}

type filePage struct {
	Files      []fileView `json:"files"`
	NextCursor string     `json:"next_cursor,omitempty"`
}

func fileList() dialect.Tool {
	return dialect.New(toolsetFiles, &mcp.Tool{
		Name:        "file_list",
		Title:       "List files",
		Description: "List a directory of a sandbox, sorted by name; with depth also what is below, a directory before its entries.",
		Annotations: annotations("List files", true, false, true, false),
		InputSchema: input(concat([]prop{
			sandboxArg(),
			opt("path", with(bounded("The directory; the sandbox's working directory if left out.", 1, sandbox.MaxPathBytes), ".")),
			opt("depth", with(integer("Levels to list; 1 is the directory's own entries.", 1, sandbox.MaxListDepth), 1)),
		}, pageArgs(500))...),
		OutputSchema: output(
			req("files", array("", object("", fileProps()...), 0, 0)),
			opt("next_cursor", text("Give it as cursor to get the next page; absent on the last.")),
		),
	}, func(ctx context.Context, c *dialect.Call, in fileListArgs) (*mcp.CallToolResult, error) {
		var out filePage
		err := fitPage(in.Limit, func(limit int) (any, error) {
			list, err := c.Service.ListFiles(ctx, in.Sandbox, sandbox.ListFilesRequest{
				Path: in.Path, Depth: in.Depth, Page: sandbox.Page{Limit: limit, Cursor: in.Cursor},
			})
			if err != nil {
				return nil, err
			}
			out = filePage{Files: make([]fileView, 0, len(list.Items)), NextCursor: list.NextCursor}
			for i := range list.Items {
				out.Files = append(out.Files, viewFile(&list.Items[i]))
			}
			return out, nil
		})
		if err != nil {
			return nil, err
		}
		return dialect.Text(out.text(), out), nil
	})
}

func (p filePage) text() string {
	if len(p.Files) == 0 {
		return "The directory is empty."
	}
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
	if p.NextCursor != "" {
		fmt.Fprintf(&b, "More: call again with cursor %s\n", p.NextCursor)
	}
	return b.String()
}

type moveArgs struct {
	Sandbox string `json:"sandbox"`
	sandbox.MoveFileRequest
}

func fileMove() dialect.Tool {
	return dialect.New(toolsetFiles, &mcp.Tool{
		Name:        "file_move",
		Title:       "Move a file",
		Description: "Move or rename a file or directory within a sandbox. It does not replace an existing file unless overwrite is set.",
		Annotations: annotations("Move a file", false, true, false, false),
		InputSchema: input(
			sandboxArg(),
			pathArg("from", "What to move."),
			pathArg("to", "Its new path, not the directory to put it in."),
			opt("overwrite", with(boolean("Replace an existing file."), false)),
		),
		OutputSchema: output(fileProps()...),
	}, func(ctx context.Context, c *dialect.Call, in moveArgs) (*mcp.CallToolResult, error) {
		info, err := c.Service.MoveFile(ctx, in.Sandbox, in.MoveFileRequest)
		if err != nil {
			return nil, err
		}
		return dialect.Text("Moved to "+info.Path+".", viewFile(info)), nil
	})
}

type deleteArgs struct {
	Sandbox   string `json:"sandbox"`
	Path      string `json:"path"`
	Recursive bool   `json:"recursive"`
}

func fileDelete() dialect.Tool {
	return dialect.New(toolsetFiles, &mcp.Tool{
		Name:        "file_delete",
		Title:       "Delete a file",
		Description: "Delete a file or an empty directory of a sandbox; with recursive a directory and everything in it. A symbolic link is deleted, not what it points to.",
		Annotations: annotations("Delete a file", false, true, false, false),
		InputSchema: input(
			sandboxArg(),
			pathArg("path", "What to delete."),
			opt("recursive", with(boolean("Delete a directory with everything in it."), false)),
		),
		OutputSchema: output(req("deleted", text("The path that is gone."))),
	}, func(ctx context.Context, c *dialect.Call, in deleteArgs) (*mcp.CallToolResult, error) {
		if err := c.Service.DeleteFile(ctx, in.Sandbox, in.Path, in.Recursive); err != nil {
			return nil, err
		}
		return dialect.Text("Deleted "+in.Path+".", struct {
			Deleted string `json:"deleted"`
		}{in.Path}), nil
	})
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
	size := f.Size
	if f.Type == sandbox.TypeDirectory {
		size = 0 // what it says of a directory depends on the file system
	}
	return fileView{
		Path: f.Path, Type: f.Type, SizeBytes: size, Mode: f.Mode, ModifiedAt: f.ModifiedAt, SymlinkTarget: f.SymlinkTarget,
	}
}

func typeSchema() *jsonschema.Schema {
	return oneOf("", string(sandbox.TypeFile), string(sandbox.TypeDirectory), string(sandbox.TypeSymlink), string(sandbox.TypeOther))
}

func fileProps() []prop {
	return []prop{
		req("path", text("Absolute path.")),
		req("type", typeSchema()),
		req("size_bytes", count("0 for a directory.")),
		req("mode", text("Permission bits in octal.")),
		req("modified_at", moment("")),
		opt("symlink_target", text("")),
	}
}
