package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/internal/daemon/service/secrets"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/vault"
	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/internal/engine/tiered"
	"github.com/cove-sh/cove/internal/template/image"
	"github.com/cove-sh/cove/sandbox"
)

// objectsDir, in the state directory, has what is known about the object store.
const objectsDir = "objects"

// openObjects puts the object store of the configuration, if there is one, behind the
// engine.
func (s *Server) openObjects(ctx context.Context, p *parts, installation string, v *vault.Vault) error {
	bucket, err := s.cfg.Objects.Open(os.Getenv)
	if err != nil || bucket == nil {
		return err
	}
	inner, ok := p.engine.(tiered.Inner)
	if !ok {
		return errors.New("the engine cannot keep checkpoints in an object store")
	}
	key, err := objectKey(ctx, p.store, v)
	if err != nil {
		return err
	}
	defer vault.Wipe(key)
	roots, _ := p.templates.(tiered.Roots)
	cfg := tiered.Config{
		Engine: inner, Roots: roots, Bucket: bucket, Key: key, Installation: installation,
		Dir: filepath.Join(s.cfg.StateDir, objectsDir), CacheBytes: s.cfg.Objects.CacheMiB << 20, UploadBytes: s.cfg.Objects.UploadMiB << 20, Log: s.log,
	}
	if p.fleet != nil {
		cfg.Build = p.programs.shared
	}
	e, err := tiered.New(cfg)
	if err != nil {
		return err
	}
	p.engine, p.objects = e, e
	if err := e.Start(ctx); err != nil {
		return fmt.Errorf("open the object store: %w", err)
	}
	p.metrics.registry.MustRegister(objectMetrics(e)...)
	return shareTemplates(p)
}

// sharer is a [service.TemplateProvider] whose templates other servers can use.
type sharer interface {
	Share(records durable.Files, roots image.RootStore) error
	// SharedRoots returns the digests of their roots.
	SharedRoots() (map[string]bool, error)
}

// shareTemplates has the templates in the database and the object store, if there are both:
// the next server may be on another machine.
func shareTemplates(p *parts) error {
	records, ok := p.files.(*recordFiles)
	if !ok {
		return nil
	}
	if p.shared, ok = p.templates.(sharer); !ok {
		return nil
	}
	return p.shared.Share(durable.Below(records, templatesFiles), p.objects)
}

// rootsInUse returns the roots that the object store is to keep: those that sandboxes need,
// and those of templates.
func (p *parts) rootsInUse(ctx context.Context) (map[string]bool, error) {
	roots, err := p.service.Roots(ctx)
	if err != nil || p.shared == nil {
		return roots, err
	}
	of, err := p.shared.SharedRoots()
	if err != nil {
		return nil, err
	}
	maps.Copy(roots, of)
	return roots, nil
}

// objectKey returns the key of what is in the object store. It is made once, and kept in
// the store as it was sealed, so that the key of secrets can be rotated.
func objectKey(ctx context.Context, st store.ObjectKey, v *vault.Vault) ([]byte, error) {
	sealed, err := st.ObjectKey(ctx)
	if err != nil {
		return nil, err
	}
	if sealed == nil {
		key := make([]byte, tiered.KeySize)
		rand.Read(key)
		if sealed, err = v.Seal(secrets.ObjectKeyRef, key); err != nil {
			return nil, err
		}
		return key, st.SetObjectKey(ctx, nil, sealed)
	}
	var key []byte
	err = v.Open(secrets.ObjectKeyRef, sealed, func(value []byte) error {
		key = append(key, value...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("the key of the object store cannot be opened; put the file %s or %s of the server that filled it in place: %w", vault.KeyFile, vault.EnvKey, err)
	}
	return key, nil
}

// objectMetrics tell Prometheus of the object store.
func objectMetrics(e *tiered.Engine) []prometheus.Collector {
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f)
	}
	return []prometheus.Collector{
		gauge("cove_objects_waiting_bytes", "Size of snapshots and paused sandboxes that are not in the object store yet.", func() float64 { _, n := e.Waiting(); return float64(n) }),
		gauge("cove_objects_waiting", "Snapshots and paused sandboxes that are not in the object store yet.", func() float64 { n, _ := e.Waiting(); return float64(n) }),
		gauge("cove_objects_up", "1 if the object store worked when it was last used, 0 otherwise.", func() float64 {
			if _, err := e.Health(); err != nil {
				return 0
			}
			return 1
		}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "cove_objects_sent_bytes_total", Help: "Bytes sent to the object store, compressed and encrypted."}, func() float64 { n, _ := e.Uploaded(); return float64(n) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "cove_objects_shared_bytes_total", Help: "Bytes that were not sent because the object store had them."}, func() float64 { _, n := e.Uploaded(); return float64(n) }),
	}
}

// checkTimeout bounds a look at the object store.
const checkTimeout = 10 * time.Second

// CheckObjects says which object store a daemon with this configuration has, and whether
// it answers. The name is empty if there is none.
func CheckObjects(ctx context.Context, o config.Objects, env func(string) string) sandbox.MachineCheck {
	bucket, err := o.Open(env)
	if bucket == nil && err == nil {
		return sandbox.MachineCheck{}
	}
	c := sandbox.MachineCheck{Name: "object store", Status: sandbox.CheckOK}
	if err == nil {
		c.Detail = bucket.String()
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		defer cancel()
		for _, lerr := range bucket.List(ctx, "checkpoints/") {
			err = lerr
			break
		}
	}
	if err != nil {
		c.Status = sandbox.CheckWarn
		c.Detail = fmt.Sprintf("%s: %v; snapshots and paused sandboxes stay on this machine until it works", o.URL, err)
		c.Fix = "check --objects (COVE_OBJECTS), the endpoint and the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS's files)"
	}
	return c
}

// noteObjects adds to a report what the daemon knows of its object store.
func noteObjects(report *sandbox.MachineReport, e *tiered.Engine) {
	if e == nil {
		return
	}
	for i := range report.Checks {
		c := &report.Checks[i]
		if c.Name != "object store" {
			continue
		}
		if n, bytes := e.Waiting(); n > 0 {
			c.Detail += fmt.Sprintf("; %d snapshots or paused sandboxes (%d MiB) are not in it yet", n, bytes>>20)
		}
		if since, err := e.Health(); err != nil {
			c.Status = sandbox.CheckWarn
			c.Detail += fmt.Sprintf("; it has not worked since %s: %v", since.UTC().Format(time.RFC3339), err)
		}
	}
}
