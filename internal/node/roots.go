package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/cove-sh/cove/internal/daemon/nodes"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// Store keeps root file systems on this machine.
type Store interface {
	// Root returns the root of a template of this machine's own.
	Root(ctx context.Context, template string) (engine.Root, sandbox.Template, error)
	HasRoot(digest string) bool
	UnpackRoot(ctx context.Context, digest string, r io.Reader, check func() error) error
	Locate(ctx context.Context, digest string, bound []engine.Bind) (engine.Root, error)
	// Collect removes the roots that are not in use.
	Collect(inUse map[string]bool) (removed []string, err error)
}

// hostTemplate is the template of each machine's own programs.
const hostTemplate = "host"

// fetchTimeout bounds how long fetching a root may take.
const fetchTimeout = 30 * time.Minute

// roots finds root file systems, and fetches from the server those that are not here.
type roots struct {
	id      *Identity
	store   Store
	fetches singleflight.Group
}

// Root implements [remote.Roots]. A root that was handed out is not collected for a while,
// and then it is in use.
func (r *roots) Root(ctx context.Context, digest string, bound []engine.Bind) (engine.Root, func(), error) {
	root, err := r.root(ctx, digest, bound)
	return root, func() {}, err
}

func (r *roots) root(ctx context.Context, digest string, bound []engine.Bind) (engine.Root, error) {
	if len(bound) > 0 {
		own, _, err := r.store.Root(ctx, hostTemplate)
		if err != nil || own.Digest == digest {
			return own, err
		}
		var about nodes.AboutRoot
		if err := r.get(ctx, digest+"/about", func(res *http.Response) error { return decode(res, &about) }); err != nil {
			return own, err
		}
		if about.Host {
			return own, nil
		}
	}
	root, err := r.store.Locate(ctx, digest, bound)
	if err != nil || r.store.HasRoot(digest) {
		return root, err
	}
	// Others wait for the same fetch, so this caller's cancellation does not end it.
	_, err, _ = r.fetches.Do(digest, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
		defer cancel()
		return nil, r.fetch(ctx, digest)
	})
	return root, err
}

func (r *roots) get(ctx context.Context, path string, take func(*http.Response) error) error {
	cfg, err := r.id.config()
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+nodes.ServerName+"/v1/roots/"+path, nil)
	if err != nil {
		return err
	}
	res, err := r.id.client(cfg).Do(req)
	if err != nil {
		return sandbox.Wrap(sandbox.CodeUnavailable, err, "the node cannot fetch the template from the server now; try again")
	}
	defer res.Body.Close()
	return take(res)
}

func (r *roots) fetch(ctx context.Context, digest string) error {
	if r.store.HasRoot(digest) {
		return nil
	}
	began := time.Now()
	err := r.get(ctx, digest, func(res *http.Response) error {
		if res.StatusCode != http.StatusOK {
			return decode(res, nil)
		}
		sum := sha256.New()
		return r.store.UnpackRoot(ctx, digest, io.TeeReader(res.Body, sum), func() error {
			if got := hex.EncodeToString(sum.Sum(nil)); got != res.Trailer.Get(nodes.SumTrailer) {
				return errors.New("the root was damaged on its way")
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("fetch root %s: %w", digest, err)
	}
	r.id.log.Info("fetched a template's root from the server", "digest", digest, "took", time.Since(began).Round(time.Millisecond))
	return nil
}
