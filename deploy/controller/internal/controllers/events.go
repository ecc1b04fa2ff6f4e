package controllers

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	agents "github.com/cove-sh/cove/deploy/controller/api/agents/v1beta1"
	"github.com/cove-sh/cove/sandbox"
)

// followAgain is how long to wait before the events of Cove are followed again.
const followAgain = 2 * time.Second

// Follower asks for a look at the objects whose sandboxes have changed in Cove.
type Follower struct {
	client.Client
	Cove sandbox.Service
	Out  chan<- event.GenericEvent
}

// Start follows the events of Cove until ctx ends. When the connection was lost, all
// objects are looked at, because events may be missing.
func (f *Follower) Start(ctx context.Context) error {
	req := sandbox.FollowEventsRequest{Kinds: []sandbox.EventKind{sandbox.EventSandbox, sandbox.EventJob}}
	for ctx.Err() == nil {
		err := f.Cove.FollowEvents(ctx, req, func(e sandbox.Event) error {
			switch {
			case e.Kind == sandbox.EventBegun:
				return f.all(ctx)
			case e.Sandbox != nil:
				return f.one(ctx, e.Sandbox)
			case e.Job != nil && e.Job.Tag == commandTag && e.Job.State == sandbox.JobExited:
				of, err := f.Cove.Get(ctx, e.SandboxID)
				if err != nil {
					return err
				}
				return f.one(ctx, of)
			}
			return nil
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

// one asks for a look at the object of a sandbox, which its metadata names. Anybody in the
// team may have written it, and can only have some object looked at.
func (f *Follower) one(ctx context.Context, of *sandbox.Sandbox) error {
	name := of.Metadata[nameKey]
	if name == "" {
		return nil
	}
	return f.send(ctx, &agents.Sandbox{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: name}})
}

// all asks for a look at all objects.
func (f *Follower) all(ctx context.Context) error {
	var list agents.SandboxList
	if err := f.List(ctx, &list); err != nil {
		return err
	}
	for _, sb := range list.Items {
		if err := f.send(ctx, &sb); err != nil {
			return err
		}
	}
	return nil
}

func (f *Follower) send(ctx context.Context, sb *agents.Sandbox) error {
	select {
	case f.Out <- event.GenericEvent{Object: sb}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// NeedLeaderElection says that only the controller that leads follows events.
func (f *Follower) NeedLeaderElection() bool { return true }
