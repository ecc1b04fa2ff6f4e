package oci

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// resuming resumes the download of a large blob after a broken connection, with a request
// for the rest.
type resuming struct {
	next    http.RoundTripper
	backoff time.Duration
}

// maxResumes is how often one download is resumed.
const maxResumes = 8

func (r *resuming) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.next.RoundTrip(req)
	if err != nil || req.Method != http.MethodGet || resp.StatusCode != http.StatusOK || resp.ContentLength <= 0 || req.Header.Get("Range") != "" {
		return resp, err
	}
	resp.Body = &resumingBody{from: r, req: req, body: resp.Body, size: resp.ContentLength, tag: resp.Header.Get("ETag")}
	return resp, nil
}

type resumingBody struct {
	from     *resuming
	req      *http.Request
	body     io.ReadCloser
	at, size int64
	tag      string
	resumes  int
}

func (b *resumingBody) Read(p []byte) (int, error) {
	for {
		n, err := b.body.Read(p)
		b.at += int64(n)
		if n > 0 && b.at < b.size {
			return n, nil // the next Read returns the error again
		}
		if err == nil || b.at >= b.size || b.req.Context().Err() != nil {
			return n, err
		}
		if b.resumes++; b.resumes > maxResumes {
			return n, err
		}
		if rerr := b.resume(); rerr != nil {
			return n, err
		}
	}
}

// resume requests the rest. The digest shows whether it is of the same blob.
func (b *resumingBody) resume() error {
	b.body.Close()
	b.body = http.NoBody
	select {
	case <-b.req.Context().Done():
		return b.req.Context().Err()
	case <-time.After(b.from.backoff * time.Duration(b.resumes)):
	}
	req := b.req.Clone(b.req.Context())
	req.Header.Set("Range", "bytes="+strconv.FormatInt(b.at, 10)+"-")
	if b.tag != "" && !strings.HasPrefix(b.tag, "W/") {
		req.Header.Set("If-Range", b.tag)
	}
	resp, err := b.from.next.RoundTrip(req)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusPartialContent || !strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", b.at)) {
		resp.Body.Close()
		return fmt.Errorf("the rest of the download is not given: %s", resp.Status)
	}
	b.body = resp.Body
	return nil
}

func (b *resumingBody) Close() error { return b.body.Close() }
