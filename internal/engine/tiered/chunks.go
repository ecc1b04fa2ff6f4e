package tiered

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/cove-sh/cove/internal/objects"
)

// errDamaged means that something in the bucket is missing or is not what was stored.
var errDamaged = errors.New("the state in the object store is damaged")

// requests is how many requests are under way at the same time.
const requests = 8

// vessel reads and writes chunks and manifests of a bucket.
type vessel struct {
	bucket objects.Bucket
	keys   *keyring
	*press
	// slots bounds the requests of all files together. Nothing that waits for a machine holds
	// one: a node that neither sends nor reads would stop all others.
	slots *semaphore.Weighted
	// urgent bounds those for which an instance waits; they need no slot.
	urgent *semaphore.Weighted
	// limit bounds uploads, in bytes a second; nil is no bound.
	limit *rate.Limiter
	sent  atomic.Int64 // bytes uploaded
	found atomic.Int64 // bytes of chunks that were there already
}

func chunkObject(name sum) string {
	s := hex.EncodeToString(name[:])
	return "chunks/" + s[:2] + "/" + s
}

func checkpointObject(id string) string { return "checkpoints/" + id }

// sharedObject returns the object of something shared, whose name says too much.
func (v *vessel) sharedObject(name string) (string, error) {
	s, err := v.keys.of("")
	if err != nil {
		return "", err
	}
	return "shared/" + s.name(name), nil
}

var buffers = sync.Pool{New: func() any { b := make([]byte, maxChunk); return &b }}

// put stores what a reader has, in chunks of a team, and returns the list of the chunks and
// the size.
func (v *vessel) put(ctx context.Context, team string, r io.Reader) (list []byte, size int64, err error) {
	s, err := v.keys.of(team)
	if err != nil {
		return nil, 0, err
	}
	caller := ctx
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(requests)
	var chunks []*chunk
	split := s.split(r)
	for ctx.Err() == nil { // else a chunk has failed, or the caller is gone
		buf := buffers.Get().(*[]byte)
		n, rerr := split.next(*buf)
		if n > 0 {
			c := &chunk{size: n}
			chunks, size = append(chunks, c), size+int64(n)
			g.Go(func() error {
				defer buffers.Put(buf)
				if err := v.slots.Acquire(ctx, 1); err != nil {
					return err
				}
				defer v.slots.Release(1)
				return v.putChunk(ctx, s, (*buf)[:n], &c.name)
			})
		} else {
			buffers.Put(buf)
		}
		if rerr != nil {
			if !errors.Is(rerr, io.EOF) {
				err = rerr
			}
			break
		}
	}
	if werr := g.Wait(); werr != nil || err != nil {
		return nil, 0, errors.Join(err, werr)
	}
	if err := context.Cause(caller); err != nil {
		return nil, 0, err
	}
	for _, c := range chunks {
		list = c.append(list)
	}
	return list, size, nil
}

// putChunk stores a chunk unless it is there or all zeros, and sets its name.
func (v *vessel) putChunk(ctx context.Context, s *scope, data []byte, name *sum) error {
	if isZero(data) {
		return nil
	}
	*name = s.sum(data)
	object := chunkObject(*name)
	switch _, err := v.bucket.Stat(ctx, object); {
	case err == nil:
		v.found.Add(int64(len(data)))
		return nil
	case !errors.Is(err, objects.ErrNotFound):
		return err
	}
	sealed := s.seal(object, v.pack(data))
	if v.limit != nil {
		if err := v.limit.WaitN(ctx, min(len(sealed), v.limit.Burst())); err != nil {
			return err
		}
	}
	if err := v.bucket.Put(ctx, object, sealed); err != nil {
		return err
	}
	v.sent.Add(int64(len(sealed)))
	return nil
}

func isZero(data []byte) bool {
	for len(data) >= 8 {
		if data[0]|data[1]|data[2]|data[3]|data[4]|data[5]|data[6]|data[7] != 0 {
			return false
		}
		data = data[8:]
	}
	for _, b := range data {
		if b != 0 {
			return false
		}
	}
	return true
}

// get writes a file's chunks to a file of zeros. The error is [errDamaged] if one of them
// is missing, or is not what was stored.
func (v *vessel) get(ctx context.Context, team string, f *file, to io.WriterAt) error {
	s, err := v.keys.of(team)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(requests)
	err = f.chunks(func(at int64, size int, name sum) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		g.Go(func() error {
			data, err := v.getChunk(ctx, s, name, size, v.slots)
			if err == nil {
				_, err = to.WriteAt(data, at)
			}
			return err
		})
		return nil
	})
	if werr := g.Wait(); werr != nil {
		return werr // it is the cause
	}
	return err
}

func (v *vessel) getChunk(ctx context.Context, s *scope, name sum, size int, slots *semaphore.Weighted) ([]byte, error) {
	if err := slots.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer slots.Release(1)
	object := chunkObject(name)
	sealed, err := v.bucket.Get(ctx, object, maxSealedChunk)
	if err != nil {
		return nil, lost(object, err)
	}
	packed, err := s.open(object, sealed)
	if err != nil {
		return nil, damaged(object, err)
	}
	data, err := v.unpack(packed, maxChunk)
	if err != nil {
		return nil, damaged(object, err)
	}
	if len(data) != size || s.sum(data) != name {
		return nil, damaged(object, errSealed)
	}
	return data, nil
}

// lost returns [errDamaged] if an object that should be there is missing or too large.
func lost(object string, err error) error {
	if errors.Is(err, objects.ErrNotFound) || errors.Is(err, objects.ErrTooLarge) {
		return damaged(object, err)
	}
	return err
}

func damaged(object string, err error) error {
	return fmt.Errorf("%w: %s: %w", errDamaged, object, err)
}

// sealManifest encodes a manifest. The error is [errLocal] if it could not be read again,
// which would stop each sweep of the bucket.
func (v *vessel) sealManifest(object string, m *manifest) ([]byte, error) {
	data, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(data) > maxManifest {
		return nil, fmt.Errorf("%w: its manifest has %d bytes, more than %d", errLocal, len(data), maxManifest)
	}
	if _, err := parseManifest(data, m.ID); err != nil {
		return nil, fmt.Errorf("%w: %w", errLocal, err)
	}
	s, err := v.keys.of("")
	if err != nil {
		return nil, err
	}
	sealed := s.seal(object, v.pack(data))
	if len(sealed) > maxSealedManifest {
		return nil, fmt.Errorf("%w: its manifest has %d bytes, more than %d", errLocal, len(sealed), maxSealedManifest)
	}
	return sealed, nil
}

// openManifest reads a manifest that is to be of an object and of an id.
func (v *vessel) openManifest(object, id string, sealed []byte) (*manifest, error) {
	s, err := v.keys.of("")
	if err != nil {
		return nil, err
	}
	packed, err := s.open(object, sealed)
	if err != nil {
		return nil, damaged(object, err)
	}
	data, err := v.unpack(packed, maxManifest)
	if err != nil {
		return nil, damaged(object, err)
	}
	m, err := parseManifest(data, id)
	if err != nil {
		return nil, damaged(object, err)
	}
	return m, nil
}

// manifest reads a manifest from the bucket.
func (v *vessel) manifest(ctx context.Context, object, id string) (*manifest, []byte, error) {
	sealed, err := v.bucket.Get(ctx, object, maxSealedManifest)
	if err != nil {
		return nil, nil, lost(object, err)
	}
	m, err := v.openManifest(object, id, sealed)
	return m, sealed, err
}

// share stores something that checkpoints share, unless it is there.
func (v *vessel) share(ctx context.Context, name string, r io.Reader) error {
	object, err := v.sharedObject(name)
	if err != nil {
		return err
	}
	switch _, err := v.bucket.Stat(ctx, object); {
	case err == nil:
		return nil
	case !errors.Is(err, objects.ErrNotFound):
		return err
	}
	chunks, size, err := v.put(ctx, "", r)
	if err != nil {
		return err
	}
	sealed, err := v.sealManifest(object, &manifest{Version: manifestVersion, ID: name, Files: []file{{Name: "content", Size: size, Chunks: chunks}}})
	if err != nil {
		return err
	}
	return v.bucket.Put(ctx, object, sealed)
}

// shared reads the manifest of something shared.
func (v *vessel) shared(ctx context.Context, name string) (*file, error) {
	object, err := v.sharedObject(name)
	if err != nil {
		return nil, err
	}
	m, _, err := v.manifest(ctx, object, name)
	if err != nil {
		return nil, err
	}
	f := m.file("content")
	if f == nil {
		return nil, damaged(object, errors.New("it has no content"))
	}
	return f, nil
}
