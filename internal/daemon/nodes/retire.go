package nodes

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cove-sh/cove/internal/daemon/pods"
	"github.com/cove-sh/cove/internal/engine/fleet"
)

const (
	// retireEvery is how often dedicated nodes are looked at on which nothing runs, retireLimit
	// how long one of them may take, and retireAtOnce how many are replaced at the same time.
	retireEvery  = 2 * time.Second
	retireLimit  = time.Minute
	retireAtOnce = 8
	// tendEvery is how often used Pods are looked for that are no nodes any more.
	tendEvery = time.Minute
	// sayAgain is how often the log says the same about a node.
	sayAgain = 10 * time.Minute
)

// retiring replaces dedicated nodes that were used.
type retiring struct {
	*Nodes
	// stored reports whether all of these checkpoints are elsewhere too.
	stored func(ctx context.Context, checkpoints []string) bool
	// said has when the log last said of a node, by its id, that it cannot be replaced.
	said map[string]time.Time
}

// RetireUsed replaces dedicated nodes that were used and on which nothing runs any more, until
// ctx ends: no family gets a machine that another one had. A Pod is deleted, so that its
// controller makes a new one; of another machine, what is left is removed. Stored reports
// whether all of these checkpoints are elsewhere too: a node that has the only copy of one stays
// as it is.
func (n *Nodes) RetireUsed(ctx context.Context, stored func(ctx context.Context, checkpoints []string) bool) {
	r := &retiring{Nodes: n, stored: stored, said: map[string]time.Time{}}
	tick := time.NewTicker(retireEvery)
	defer tick.Stop()
	tend := time.NewTicker(tendEvery)
	defer tend.Stop()
	r.tendUsed(ctx)
	for {
		select {
		case <-tick.C:
			r.retireAll(ctx)
		case <-tend.C:
			r.tendUsed(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (r *retiring) retireAll(ctx context.Context) {
	vacant := r.cfg.Fleet.Vacancies()
	why := make([]string, len(vacant))
	var g errgroup.Group
	g.SetLimit(retireAtOnce)
	for i, v := range vacant {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, retireLimit)
			defer cancel()
			stays, err := r.retire(ctx, v)
			if why[i] = stays; err != nil {
				why[i] = err.Error()
			}
			return nil
		})
	}
	_ = g.Wait()
	if ctx.Err() != nil {
		return
	}
	now := time.Now()
	for i, v := range vacant {
		if why[i] != "" && now.Sub(r.said[v.ID]) >= sayAgain {
			r.cfg.Log.Warn("a dedicated node that was used cannot be replaced yet", "node", v.Node, "why", why[i])
			r.said[v.ID] = now
		}
	}
	for id, at := range r.said {
		if now.Sub(at) >= sayAgain {
			delete(r.said, id)
		}
	}
}

// retire replaces a node if it can be, or says why not. It is tried again.
func (r *retiring) retire(ctx context.Context, v fleet.Vacancy) (stays string, err error) {
	pod, isPod, err := r.podOf(v)
	gone := false
	switch {
	case err != nil:
		return "", err
	case v.Lost && !isPod:
		return "", nil // it may be back
	case v.Lost:
		if gone, err = r.cfg.Pods.Gone(ctx, pod); err != nil {
			return "", err
		}
	}
	only := func() bool { return len(v.Checkpoints) > 0 && !r.stored(ctx, v.Checkpoints) }
	switch {
	case !v.Claimed && !gone:
		return "", nil
	case gone && only():
		return "its Pod has ended, and the only copy of some state was there; that state is lost. Remove the node with: cove node rm " + v.Node, nil
	case only():
		return "it has the only copy of some state, such as a paused sandbox that is not in the object store, a fork point, or steps of a history", nil
	}
	if ok, err := r.cfg.Fleet.Retire(v); !ok || err != nil {
		return "", err
	}
	if !isPod {
		if err := r.cfg.Fleet.Free(ctx, v); err != nil {
			return "", err
		}
		r.cfg.Log.Info("a dedicated node is free again", "node", v.Node)
		return "", nil
	}
	if err := r.markUsed(v.Node, v.ID); err != nil {
		return "", err
	}
	if err := r.cfg.Pods.Delete(ctx, pod); err != nil {
		return "", err
	}
	return "", r.remove(v)
}

// remove removes a node whose Pod has ended or is ending.
func (r *retiring) remove(v fleet.Vacancy) error {
	if err := r.cfg.Fleet.RemoveMember(v.Node, v.ID); err != nil {
		return err
	}
	if r.mover != nil {
		r.mover.NodeRemoved()
	}
	r.cfg.Log.Info("a dedicated node was removed, and its Pod is replaced", "node", v.Node)
	return nil
}

// podOf returns the Pod that a node is, if it is one.
func (r *retiring) podOf(v fleet.Vacancy) (pod pods.Pod, isPod bool, err error) {
	known, err := r.pods.read(v.Node)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && known.ID != v.ID:
		return pod, false, nil // it joined with a token of "cove node token"
	case err == nil && r.cfg.Pods == nil:
		err = errors.New("it is a Pod, but this server was started without --nodes-service-account")
	}
	return pods.Pod{Name: v.Node, UID: known.UID}, true, err
}

// tendUsed has used Pods end that are no nodes any more, and forgets those that do not exist:
// their tokens are not valid any more.
func (r *retiring) tendUsed(ctx context.Context) {
	if r.cfg.Pods == nil {
		return
	}
	used, err := r.pods.used()
	for id, pod := range used {
		var exists bool
		if exists, err = r.cfg.Pods.Exists(ctx, pod); err != nil {
			break
		}
		switch {
		case !exists:
			err = r.pods.forget(pod)
		case !r.cfg.Fleet.IsMember(pod.Name, id):
			err = r.cfg.Pods.Delete(ctx, pod)
		}
		if err != nil {
			break
		}
	}
	if err != nil && ctx.Err() == nil {
		r.cfg.Log.Warn("look after Pods that were used", "error", err)
	}
}
