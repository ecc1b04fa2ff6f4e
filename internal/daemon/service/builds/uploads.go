package builds

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/template/image"
	"github.com/cove-sh/cove/sandbox"
)

const uploadLinkVersion = "u2"

// LinkUpload implements [sandbox.Templates]. The name of an archive is computed with a
// key from the team and the caller's name for the archive, so no other team gets the
// same name, and nobody can guess one.
func (x *Builder) LinkUpload(ctx context.Context, req sandbox.UploadLinkRequest) (*sandbox.UploadLink, error) {
	return call.Do(ctx, x.cfg.Gate, call.AuditedAtOnce(sandbox.ScopeTemplatesWrite, "template.upload_link"), func(c *call.Call) (*sandbox.UploadLink, error) {
		if req.Name == "" || len(req.Name) > sandbox.MaxUploadName {
			return nil, validate.Errorf("name has %d bytes; use 1 to %d", len(req.Name), sandbox.MaxUploadName)
		}
		if err := validate.Text("name", req.Name); err != nil {
			return nil, err
		}
		if err := validate.Range("size_bytes", req.SizeBytes, 1, sandbox.MaxUploadBytes); err != nil {
			return nil, err
		}
		keeper, err := x.archives()
		if err != nil {
			return nil, err
		}
		name := hmac.New(sha256.New, x.cfg.Key)
		fmt.Fprintf(name, "cove upload name %s\n%s\n%s\n", uploadLinkVersion, c.Caller.Team, req.Name)
		link := &sandbox.UploadLink{
			Archive:   "upload-" + strings.ToLower(base32.StdEncoding.EncodeToString(name.Sum(nil)))[:26],
			ExpiresAt: time.Now().Add(sandbox.UploadLinkTime).UTC().Truncate(time.Second),
		}
		c.Detail = link.Archive
		link.Present = keeper.HasArchive(link.Archive)
		if x.cfg.UploadURL != nil {
			link.URL = x.cfg.UploadURL(x.SignUpload(link.Archive, req.SizeBytes, link.ExpiresAt))
		}
		if link.URL == "" && !link.Present {
			return nil, sandbox.Errorf(sandbox.CodeUnsupported, "this server does not know its own address; its operator can set one with --listen, and with allowed_hosts if it serves other machines")
		}
		return link, nil
	})
}

// SignUpload returns a link that is valid once, for one archive of at most size bytes,
// until the given time.
func (x *Builder) SignUpload(archive string, size int64, until time.Time) string {
	what := fmt.Sprintf("%s.%s.%d.%d.%s", uploadLinkVersion, archive, size, until.Unix(), strings.ToLower(rand.Text()))
	return what + "." + base64.RawURLEncoding.EncodeToString(x.uploadMAC(what))
}

func (x *Builder) uploadMAC(what string) []byte {
	mac := hmac.New(sha256.New, x.cfg.Key)
	fmt.Fprintf(mac, "cove upload link\n%s\n", what)
	return mac.Sum(nil)
}

// errNoUpload is the error for every invalid link.
var errNoUpload = sandbox.Errorf(sandbox.CodeForbidden, "this link is not valid or has expired; request another")

// maxUploadLink bounds a link, in bytes.
const maxUploadLink = 256

// ReceiveUpload keeps an archive that is sent with a link; the sender needs no key.
// Size is the announced length in bytes, or -1.
func (x *Builder) ReceiveUpload(ctx context.Context, link string, size int64, content io.Reader) (*sandbox.ArchiveUpload, error) {
	i := strings.LastIndexByte(link, '.')
	if len(link) > maxUploadLink || i < 0 {
		return nil, errNoUpload
	}
	mac, err := base64.RawURLEncoding.DecodeString(link[i+1:])
	if err != nil || !hmac.Equal(mac, x.uploadMAC(link[:i])) {
		return nil, errNoUpload
	}
	// The signature is valid, so the parts are as SignUpload wrote them.
	parts := strings.Split(link[:i], ".")
	most, err := strconv.ParseInt(parts[2], 10, 64)
	if err != nil {
		return nil, errNoUpload
	}
	until, err := strconv.ParseInt(parts[3], 10, 64)
	if err != nil || !time.Now().Before(time.Unix(until, 0)) {
		return nil, errNoUpload
	}
	if size > most {
		return nil, sandbox.Errorf(sandbox.CodeTooLarge, "the archive has %d bytes, but the link is for %d; request another link", size, most)
	}
	keeper, err := x.archives()
	if err != nil {
		return nil, err
	}
	return keeper.KeepArchive(ctx, image.Upload{Name: parts[1], Most: most, Ticket: link}, content)
}
