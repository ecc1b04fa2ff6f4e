package controllers

import (
	"context"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	agents "github.com/cove-sh/cove/deploy/controller/api/agents/v1beta1"
	"github.com/cove-sh/cove/sandbox"
)

// followAgain is how long to wait before the events of Cove are followed again.
const followAgain = 2 * time.Second

// byID is the index of Sandboxes by their sandbox's id.
const byID = "cove.sh/sandbox"

// Follower asks for a look at the objects whose sandboxes or builds have changed in Cove.
type Follower struct {
	client.Client
	Cove sandbox.Service
	Out  chan<- event.GenericEvent
}

// Start follows the events of Cove until ctx ends. When the connection was lost, all
// objects are looked at, because events may be missing.
func (f *Follower) Start(ctx context.Context) error {
	req := sandbox.FollowEventsRequest{Kinds: []sandbox.EventKind{sandbox.EventSandbox, sandbox.EventSandboxDeleted, sandbox.EventJob}}
	for ctx.Err() == nil {
		err := f.Cove.FollowEvents(ctx, req, func(e sandbox.Event) error {
			if e.Kind == sandbox.EventBegun {
				return f.send(ctx)
			}
			return f.send(ctx, client.MatchingFields{byID: e.SandboxID})
		})
		if err != nil && ctx.Err() == nil {
			ctrl.LoggerFrom(ctx).Info("events of Cove are followed again", "error", err.Error())
		}
		select {
		case <-ctx.Done():
		case <-time.After(followAgain):
		}
	}
	return nil
}

func (f *Follower) send(ctx context.Context, which ...client.ListOption) error {
	var list agents.SandboxList
	if err := f.List(ctx, &list, which...); err != nil {
		return err
	}
	for _, sb := range list.Items {
		select {
		case f.Out <- event.GenericEvent{Object: &sb}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// NeedLeaderElection says that only the controller that leads follows events.
func (f *Follower) NeedLeaderElection() bool { return true }

func idOf(o client.Object) []string {
	if id := o.GetAnnotations()[SandboxAnnotation]; id != "" {
		return []string{id}
	}
	return nil
}
