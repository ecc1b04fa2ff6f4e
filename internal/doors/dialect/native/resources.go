package native

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

const zipType = "application/zip"

type downloadArgs struct {
	sandboxRef
	Path     string `json:"path,omitempty"`
	LinkOnly bool   `json:"link_only,omitempty"`
}

type downloadResult struct {
	Path      string `json:"path"`
	SizeBytes int64  `json:"size_bytes"`
	MIMEType  string `json:"mime_type"`
	URI       string `json:"uri"`
}

func downloadDir(ctx context.Context, c *dialect.Call, in downloadArgs) (*reply[downloadResult], error) {
	c.Status("packing " + in.Path)
	info, err := c.Service.StatFile(ctx, in.Sandbox, in.Path)
	if err != nil {
		return nil, err
	}
	data, err := archive(ctx, c.Service, in.Sandbox, info.Path)
	if err != nil {
		return nil, err
	}
	size := int64(len(data))
	res := downloadResult{Path: info.Path, SizeBytes: size, MIMEType: zipType, URI: fileURI(in.Sandbox, info.Path) + "?" + zipQuery}
	var more []mcp.Content
	if !in.LinkOnly {
		more = append(more, &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: res.URI, MIMEType: zipType, Blob: data}})
	}
	more = append(more, &mcp.ResourceLink{URI: res.URI, Name: archiveName(info.Path), MIMEType: zipType, Size: &size})
	return answer(fmt.Sprintf("ZIP file of %s: %d bytes.", info.Path, size), res, more...)
}

func archiveName(dir string) string {
	if base := path.Base(dir); base != "/" && base != "." {
		return base + ".zip"
	}
	return "root.zip"
}

// archive returns a directory as a ZIP file within the limit.
func archive(ctx context.Context, svc sandbox.Service, sb, dir string) ([]byte, error) {
	r, err := svc.ArchiveDir(ctx, sb, dir, maxArchive)
	if err == nil {
		defer r.Close()
		var data []byte
		if data, err = io.ReadAll(io.LimitReader(r, maxArchive+1)); err == nil && len(data) <= maxArchive {
			return data, nil
		}
	}
	if err == nil || sandbox.CodeOf(err) == sandbox.CodeTooLarge {
		return nil, sandbox.Errorf(sandbox.CodeTooLarge, "the ZIP file of %s is over 7 MiB; download a directory inside it, or single files", dir)
	}
	return nil, err
}

// Sandboxes are resources cove://sandbox/<id>, and their files
// cove://sandbox/<id><absolute path>: a directory is a listing, or a ZIP file with
// ?format=zip. The id may also be a name.
const (
	scheme      = "cove"
	uriHost     = "sandbox"
	uriTemplate = scheme + "://" + uriHost + "/{sandbox}{+path}"
	uriSandbox  = scheme + "://" + uriHost + "/{sandbox}"
	zipQuery    = "format=zip"
	maxResource = maxArchive
)

func fileURI(sb, file string) string {
	return (&url.URL{Scheme: scheme, Host: uriHost, Path: "/" + sb + file}).String()
}

// parseURI returns the parts of a resource's URI; file is "" for the sandbox itself.
func parseURI(uri string) (sb, file string, zip bool, err error) {
	bad := invalid("not a resource of Cove; a file is %s://%s/<sandbox id>/<absolute path>", scheme, uriHost)
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != scheme || u.Host != uriHost || u.User != nil || u.Fragment != "" {
		return "", "", false, bad
	}
	sb, file, ok := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	if sb == "" || strings.ContainsFunc(sb, unicode.IsControl) || (u.RawQuery != "" && (u.RawQuery != zipQuery || !ok)) {
		return "", "", false, bad
	}
	if ok {
		file = "/" + file
	}
	return sb, file, u.RawQuery == zipQuery, nil
}

func fileResource() dialect.ResourceTemplate {
	return dialect.ResourceTemplate{
		Def: &mcp.ResourceTemplate{
			Name:        "sandbox_file",
			Title:       "A file of a sandbox",
			Description: "A file of up to 7 MiB, by the sandbox's id and the absolute path; a directory as a list, or as a ZIP file with ?format=zip.",
			URITemplate: uriTemplate,
		},
		Read: readResource,
	}
}

func readResource(ctx context.Context, svc sandbox.Service, uri string) (*mcp.ReadResourceResult, error) {
	sb, file, zip, err := parseURI(uri)
	if err != nil {
		return nil, err
	}
	if file == "" {
		return readSandbox(ctx, svc, uri, sb)
	}
	if zip {
		data, err := archive(ctx, svc, sb, file)
		if err != nil {
			return nil, err
		}
		return contents(&mcp.ResourceContents{URI: uri, MIMEType: zipType, Blob: data}), nil
	}
	if strings.HasSuffix(file, "/") {
		return readDirectory(ctx, svc, uri, sb, file)
	}
	f, err := svc.ReadFile(ctx, sb, sandbox.ReadFileRequest{Path: file, Limit: maxResource + 1})
	if code := sandbox.CodeOf(err); code == sandbox.CodeInvalid || code == sandbox.CodeConflict {
		if info, serr := svc.StatFile(ctx, sb, file); serr == nil && info.Type == sandbox.TypeDirectory {
			return readDirectory(ctx, svc, uri, sb, info.Path)
		}
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxResource+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxResource {
		return nil, sandbox.Errorf(sandbox.CodeTooLarge, "%s is over 7 MiB; read it in slices with file_read", f.Info.Path)
	}
	c := &mcp.ResourceContents{URI: uri, MIMEType: contentType(f.Info.Path, data)}
	if utf8.Valid(data) && !bytes.ContainsRune(data, 0) {
		c.Text = string(data)
	} else {
		c.Blob = data
	}
	return contents(c), nil
}

func contents(c *mcp.ResourceContents) *mcp.ReadResourceResult {
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{c}}
}

// textTypes are types that cannot be detected from content. The table of the machine
// is not used, so that results are the same everywhere.
var textTypes = map[string]string{
	".css": "text/css", ".csv": "text/csv", ".html": "text/html", ".js": "text/javascript",
	".json": "application/json", ".md": "text/markdown", ".svg": "image/svg+xml", ".xml": "application/xml",
}

func contentType(name string, data []byte) string {
	if t := textTypes[path.Ext(name)]; t != "" {
		return t
	}
	return http.DetectContentType(data)
}

// imageType returns the MIME type of an image that clients can show, or "".
func imageType(data []byte) string {
	switch t := http.DetectContentType(data); t {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
		return t
	}
	return ""
}
