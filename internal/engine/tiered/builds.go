package tiered

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/cove-sh/cove/internal/objects"
)

// Shared is a file that checkpoints share, by the name that [engine.ExportFile] gives it.
type Shared struct {
	Name string
	Open func() (io.ReadCloser, error)
}

// Builds are kept in the bucket even if no checkpoint needs them: after an upgrade of the
// server, nodes and sandboxes of the build before have programs that the server does not
// have, and it takes none from a node.
const (
	// buildsObject lists the builds, and maxBuilds is how many are kept.
	buildsObject   = "builds"
	maxBuilds      = 8
	maxBuildsBytes = 16 << 10
)

// builds is the content of buildsObject.
type builds struct {
	Version int `json:"version"`
	// Builds lists what each build shares, the newest one first.
	Builds [][]string `json:"builds"`
}

// readBuilds returns the builds that are kept. What was damaged is as good as none, and is
// replaced by the next server.
func (e *Engine) readBuilds(ctx context.Context) (list [][]string, err error) {
	sealed, err := e.vessel.bucket.Get(ctx, buildsObject, maxBuildsBytes)
	switch {
	case errors.Is(err, objects.ErrNotFound), errors.Is(err, objects.ErrTooLarge):
		return nil, nil
	case err != nil:
		return nil, err
	}
	s, err := e.vessel.keys.of("")
	if err != nil {
		return nil, err
	}
	data, err := s.open(buildsObject, sealed)
	var b builds
	if err == nil {
		err = json.Unmarshal(data, &b)
	}
	if err != nil || b.Version != manifestVersion {
		e.cfg.Log.Error("the list of builds in the object store is damaged; a server's next start makes another", "error", err)
		return nil, nil
	}
	return b.Builds, nil
}

// markBuilds marks what builds share. What was lost of it does not keep the rest from being
// collected.
func (e *Engine) markBuilds(ctx context.Context, chunks map[sum]bool, shared map[string]bool) error {
	list, err := e.readBuilds(ctx)
	if err != nil {
		return err
	}
	e.mu.Lock()
	list = append(list, e.builds...) // if the one in the bucket was lost
	e.mu.Unlock()
	for _, name := range slices.Concat(list...) {
		if err := e.markShared(ctx, name, chunks, shared); err != nil && !errors.Is(err, errDamaged) {
			return err
		}
	}
	return nil
}

// storeBuild stores what this build shares, and puts it first in the list of builds.
func (e *Engine) storeBuild(ctx context.Context) error {
	e.collecting.RLock()
	defer e.collecting.RUnlock()
	files, err := e.cfg.Build()
	if err != nil {
		return fmt.Errorf("%w: %w", errLocal, err)
	}
	var names []string
	for _, f := range files {
		if err := e.shareFile(ctx, f); err != nil {
			return err
		}
		names = append(names, f.Name)
	}
	list, err := e.readBuilds(ctx)
	if err != nil {
		return err
	}
	listed := len(list) > 0 && slices.Equal(list[0], names)
	list = slices.DeleteFunc(list, func(b []string) bool { return slices.Equal(b, names) })
	list = append([][]string{names}, list[:min(len(list), maxBuilds-1)]...)
	e.mu.Lock()
	e.builds = list
	e.mu.Unlock()
	if listed {
		return nil
	}
	data, err := json.Marshal(builds{manifestVersion, list})
	if err != nil {
		return err
	}
	s, err := e.vessel.keys.of("")
	if err != nil {
		return err
	}
	// The daemon that has replaced this one has a list of its own.
	if err := e.stillHolder(ctx); err != nil {
		return err
	}
	if err := e.vessel.bucket.Put(ctx, buildsObject, s.seal(buildsObject, data)); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dirty = true // the oldest build may be gone from the list
	return nil
}

func (e *Engine) shareFile(ctx context.Context, f Shared) error {
	r, err := f.Open()
	if err != nil {
		return fmt.Errorf("%w: %w", errLocal, err)
	}
	defer r.Close()
	return e.vessel.share(ctx, f.Name, localReader{r})
}
