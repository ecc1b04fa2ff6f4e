package expose

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// Links signs the links that open previews and live views.
type Links struct{ Key []byte }

const linkVersion = "v1"

// SignPreview returns the signed part of a link, which is valid for this preview with
// its current key until the given time.
func (l Links) SignPreview(p *store.PreviewRecord, until time.Time) string {
	expires := strconv.FormatInt(until.Unix(), 10)
	return linkVersion + "." + expires + "." + base64.RawURLEncoding.EncodeToString(l.linkMAC(p, expires))
}

func (l Links) linkMAC(p *store.PreviewRecord, expires string) []byte {
	mac := hmac.New(sha256.New, l.Key)
	fmt.Fprintf(mac, "cove preview link %s\n%s\n%d\n%s\n", linkVersion, p.ID, p.Generation, expires)
	return mac.Sum(nil)
}

// OpensPreview reports whether a link was signed for a preview and has not expired.
func (l Links) OpensPreview(p *store.PreviewRecord, link string) bool {
	version, rest, _ := strings.Cut(link, ".")
	expires, sum, ok := strings.Cut(rest, ".")
	if !ok || version != linkVersion {
		return false
	}
	got, err := base64.RawURLEncoding.Strict().DecodeString(sum)
	if err != nil || !hmac.Equal(got, l.linkMAC(p, expires)) {
		return false
	}
	until, err := strconv.ParseInt(expires, 10, 64)
	return err == nil && time.Now().Before(time.Unix(until, 0))
}

// SignView returns the signed part of a link, which is valid for this sandbox's live
// view until the given time.
func (l Links) SignView(id string, control bool, until time.Time) string {
	kind, expires := viewKind(control), strconv.FormatInt(until.Unix(), 10)
	return strings.Join([]string{linkVersion, kind, expires, base64.RawURLEncoding.EncodeToString(l.viewMAC(id, kind, expires))}, ".")
}

func (l Links) viewMAC(id, kind, expires string) []byte {
	mac := hmac.New(sha256.New, l.Key)
	fmt.Fprintf(mac, "cove view link %s\n%s\n%s\n%s\n", linkVersion, id, kind, expires)
	return mac.Sum(nil)
}

// openView returns the view that a link opens.
func (l Links) openView(id, link string) (*sandbox.View, error) {
	parts := strings.Split(link, ".")
	if len(parts) != 4 || parts[0] != linkVersion {
		return nil, errNoView
	}
	kind, expires := parts[1], parts[2]
	got, err := base64.RawURLEncoding.Strict().DecodeString(parts[3])
	if err != nil || !hmac.Equal(got, l.viewMAC(id, kind, expires)) {
		return nil, errNoView
	}
	seconds, err := strconv.ParseInt(expires, 10, 64)
	if err != nil || !time.Now().Before(time.Unix(seconds, 0)) {
		return nil, errNoView
	}
	return &sandbox.View{SandboxID: id, Control: kind == viewKind(true), ExpiresAt: time.Unix(seconds, 0).UTC()}, nil
}
