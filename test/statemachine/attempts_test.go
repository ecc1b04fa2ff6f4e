package statemachine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"pgregory.net/rapid"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// try makes two forks attempt something. The second one succeeds and is merged back.
func try(w *walk, t *rapid.T) *step {
	id, ok := w.one(t, "sandbox", alive)
	if !ok {
		return nil
	}
	kind := rapid.SampledFrom([]sandbox.MergeKind{sandbox.MergeWhole, sandbox.MergeFiles}).Draw(t, "merge")
	name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "file")
	text := w.next("try")
	sum := sha256.Sum256([]byte(text))
	s := &step{name: fmt.Sprintf("try in %s, merge %s of %s", id, kind, name), after: w.now.clone()}
	s.after.put(id, name, hex.EncodeToString(sum[:]))
	s.act = func(ctx context.Context) error {
		req := sandbox.TryRequest{
			Commands: []sandbox.TryCommand{
				{Shell: "echo wrong >" + dir + "/" + name + "; exit 3"},
				{Shell: "printf %s " + text + " >" + dir + "/" + name},
			},
			Pick: sandbox.PickFirstSuccess, Merge: kind,
		}
		if kind == sandbox.MergeFiles {
			req.Policy = sandbox.PolicyTheirs
		}
		res, err := w.d.Client.Try(ctx, id, req, nil)
		switch {
		case err != nil:
			return err
		case res.Picked == nil || *res.Picked != 1 || res.Merge == nil || !res.Merge.Merged:
			return fmt.Errorf("the second attempt was not merged: %+v", res)
		}
		return nil
	}
	return s.alone()
}

// rewind gives a sandbox a history, runs a command that does damage, and undoes it. The
// history is kept, or ends with its steps.
func rewind(w *walk, t *rapid.T) *step {
	id, ok := w.one(t, "sandbox", alive)
	if !ok {
		return nil
	}
	length := rapid.IntRange(1, 3).Draw(t, "steps")
	stays := rapid.Bool().Draw(t, "the history stays")
	s := &step{name: fmt.Sprintf("undo a command in %s with a history of %d, which stays: %v", id, length, stays), after: w.now.clone()}
	s.after.set(id, func(want *covetest.Want) { want.State = sandbox.StateRunning })
	s.act = func(ctx context.Context) error {
		if _, err := w.d.Client.Update(ctx, id, sandbox.UpdateRequest{History: &length}); err != nil {
			return err
		}
		res, err := w.d.Exec(ctx, id, sandbox.ExecRequest{Shell: "rm -rf " + dir + "; echo gone"})
		if err != nil || res.Stdout != "gone\n" {
			return fmt.Errorf("do damage: %+v, %w", res, err)
		}
		if _, err := w.d.Client.RestoreSnapshot(ctx, id, sandbox.RestoreRequest{Step: -1}); err != nil {
			return err
		}
		if stays {
			return nil
		}
		none := 0
		_, err = w.d.Client.Update(ctx, id, sandbox.UpdateRequest{History: &none})
		return err
	}
	return s.alone()
}

// rename gives a sandbox another name, which no other can have then.
func rename(w *walk, t *rapid.T) *step {
	id, ok := w.one(t, "sandbox", alive)
	if !ok {
		return nil
	}
	name := w.next("name")
	s := &step{name: "name " + id + " " + name, after: w.now.clone(), cut: []model{w.now}, prefer: []string{id}}
	s.after.set(id, func(want *covetest.Want) { want.Name = name })
	s.act = func(ctx context.Context) error {
		_, err := w.d.Client.Update(ctx, id, sandbox.UpdateRequest{Name: &name})
		return err
	}
	return s
}

// resize changes the limits of a sandbox. Its record must show them.
func resize(w *walk, t *rapid.T) *step {
	id, ok := w.one(t, "sandbox", alive)
	if !ok {
		return nil
	}
	memory := rapid.SampledFrom([]int64{256, 320, 384}).Draw(t, "memory")
	s := &step{name: fmt.Sprintf("give %s %d MiB", id, memory), after: w.now.clone(), cut: []model{w.now}, prefer: []string{id}}
	s.act = func(ctx context.Context) error {
		got, err := w.d.Client.Update(ctx, id, sandbox.UpdateRequest{MemoryMiB: &memory})
		if err == nil && got.Resources.MemoryMiB != memory {
			err = fmt.Errorf("it has %d MiB", got.Resources.MemoryMiB)
		}
		return err
	}
	return s
}
