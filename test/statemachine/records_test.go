package statemachine

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/cove-sh/cove/sandbox"
)

// record is something other than a sandbox or snapshot that must always persist: a volume,
// a secret, a key, or the revocation of a key.
type record struct{ kind, name string }

const (
	volume  = "volume"
	secret  = "secret"
	key     = "key"
	revoked = "revoked key"
)

// maxRecords bounds the records of one kind, except revoked keys.
const maxRecords = 2

// records returns the daemon's records.
func (w *walk) records(ctx context.Context) (map[record]bool, error) {
	all := map[record]bool{}
	page := sandbox.Page{Limit: sandbox.MaxPageSize}
	volumes, err := w.d.Client.ListVolumes(ctx, page)
	if err != nil {
		return nil, err
	}
	for _, v := range volumes.Items {
		all[record{volume, v.Name}] = true
	}
	secrets, err := w.d.Client.ListSecrets(ctx, page)
	if err != nil {
		return nil, err
	}
	for _, s := range secrets.Items {
		all[record{secret, s.Name}] = true
	}
	keys, err := w.d.Client.ListKeys(ctx, page)
	if err != nil {
		return nil, err
	}
	for _, k := range keys.Items {
		kind := key
		if k.RevokedAt != nil {
			kind = revoked
		}
		all[record{kind, k.Name}] = true
	}
	return all, nil
}

// drop removes a record; it revokes a key.
func (w *walk) drop(ctx context.Context, r record) (err error) {
	switch r.kind {
	case volume:
		err = w.d.Client.DeleteVolume(ctx, r.name)
	case secret:
		err = w.d.Client.DeleteSecret(ctx, r.name)
	case key:
		_, err = w.d.Client.RevokeKey(ctx, r.name)
	}
	return err
}

// keep makes a record.
func (w *walk) keep(ctx context.Context, r record) (err error) {
	switch r.kind {
	case volume:
		_, err = w.d.Client.CreateVolume(ctx, sandbox.CreateVolumeRequest{Name: r.name})
	case secret:
		_, err = w.d.Client.CreateSecret(ctx, sandbox.CreateSecretRequest{Name: r.name, Hosts: []string{"example.com"}, Value: sandbox.NewSecretValue("value-of-" + r.name)})
	case key:
		_, err = w.d.Client.CreateKey(ctx, sandbox.CreateKeyRequest{Name: r.name})
	}
	return err
}

// keepOrDrop makes a record, or removes one.
func keepOrDrop(w *walk, t *rapid.T) *step {
	kind := rapid.SampledFrom([]string{volume, secret, key}).Draw(t, "kind")
	var have []record
	for r := range w.now.records {
		if r.kind == kind {
			have = append(have, r)
		}
	}
	slices.SortFunc(have, func(a, b record) int { return strings.Compare(a.name, b.name) })
	s := &step{after: w.now.clone(), cut: []model{w.now}}
	if len(have) >= maxRecords || len(have) > 0 && rapid.Bool().Draw(t, "drop") {
		r := have[0]
		delete(s.after.records, r)
		if kind == key {
			s.after.records[record{revoked, r.name}] = true
		}
		s.name, s.frees = fmt.Sprintf("drop %s %s", kind, r.name), true
		s.act = func(ctx context.Context) error { return w.drop(ctx, r) }
		return s
	}
	r := record{kind, w.next("record")}
	s.after.records[r] = true
	s.name = fmt.Sprintf("keep %s %s", kind, r.name)
	s.act = func(ctx context.Context) error { return w.keep(ctx, r) }
	return s
}
