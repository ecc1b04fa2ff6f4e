package faults

import (
	"context"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// Power is lost right after a pause, a snapshot, a volume with synced files, a secret
// and the revocation of a key were acknowledged. A daemon that starts with what is then
// on the disk has them all.
func TestPowerLoss(t *testing.T) {
	needs.GVisor(t)
	disk := needs.NewDisk(t, 1024)
	d := covetest.Start(t, covetest.Options{StateDir: disk.Dir})
	ctx := t.Context()
	volume, err := d.Client.CreateVolume(ctx, sandbox.CreateVolumeRequest{Name: "v"})
	must(t, err)
	paused := d.Create(t, covetest.Small())
	d.Sh(t, paused.ID, "echo kept > /workspace/f")
	writer := d.Create(t, covetest.Small(func(r *sandbox.CreateRequest) {
		r.User, r.Mounts = "root", []sandbox.Mount{{Target: "/data", Volume: volume.ID}}
	}))
	d.Sh(t, writer.ID, "echo synced > /data/f && sync /data/f /data")
	key, err := d.Client.CreateKey(ctx, sandbox.CreateKeyRequest{Name: "k"})
	must(t, err)

	_, err = d.Client.RevokeKey(ctx, key.ID)
	must(t, err)
	_, err = d.Client.CreateSecret(ctx, sandbox.CreateSecretRequest{Name: "s", Hosts: []string{"example.com"}, Value: sandbox.NewSecretValue("value-of-a-secret")})
	must(t, err)
	snapshot, err := d.Client.CreateSnapshot(ctx, paused.ID, sandbox.CreateSnapshotRequest{Name: "snap"})
	must(t, err)
	_, err = d.Client.Pause(ctx, paused.ID)
	must(t, err)
	left := disk.AfterPowerLoss(t)

	after := covetest.Start(t, covetest.Options{StateDir: left})
	sbx, err := after.Client.Get(ctx, paused.ID)
	if err != nil || sbx.State != sandbox.StatePaused {
		t.Errorf("the paused sandbox is %+v, %v", sbx, err)
	}
	after.Shows(t, paused.ID, "cat /workspace/f", "kept")
	fromSnapshot := after.Create(t, sandbox.CreateRequest{Snapshot: snapshot.ID})
	after.Shows(t, fromSnapshot.ID, "cat /workspace/f", "kept")
	reader := after.Create(t, covetest.Small(func(r *sandbox.CreateRequest) {
		r.User, r.Mounts = "root", []sandbox.Mount{{Target: "/data", Volume: volume.ID}}
	}))
	after.Shows(t, reader.ID, "cat /data/f", "synced")
	if _, err := after.Client.GetSecret(ctx, "s"); err != nil {
		t.Errorf("the secret: %v", err)
	}
	if k := keyOf(ctx, t, after, key.ID); k == nil || k.RevokedAt == nil {
		t.Errorf("the revoked key is %+v", k)
	}
}

func keyOf(ctx context.Context, t *testing.T, d *covetest.Daemon, id string) *sandbox.Key {
	t.Helper()
	keys, err := d.Client.ListKeys(ctx, sandbox.Page{})
	must(t, err)
	for i := range keys.Items {
		if keys.Items[i].ID == id {
			return &keys.Items[i]
		}
	}
	return nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
