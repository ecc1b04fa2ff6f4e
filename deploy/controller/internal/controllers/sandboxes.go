package controllers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	agents "github.com/cove-sh/cove/deploy/controller/api/agents/v1beta1"
	"github.com/cove-sh/cove/deploy/controller/internal/plan"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// again is when a sandbox is looked at without an event that asks for it.
	again = 5 * time.Minute
	// soon is when something is looked at that will be ready soon.
	soon = time.Second
	// later is when something is tried again that somebody has to change.
	later = time.Minute
)

// Sandboxes makes a sandbox of Cove for each Sandbox.
type Sandboxes struct {
	client.Client
	Cove sandbox.Service
	// Templates are templates of Cove by the image that they stand for.
	Templates map[string]string
	Now       func() time.Time
}

// Reconcile makes the sandbox of an object as the object says.
func (r *Sandboxes) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var sb agents.Sandbox
	if err := r.Get(ctx, req.NamespacedName, &sb); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !sb.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.delete(ctx, &sb)
	}
	before := sb.DeepCopy()
	if controllerutil.AddFinalizer(&sb, finalizer) {
		if err := r.Patch(ctx, &sb, client.MergeFrom(before)); err != nil {
			return ctrl.Result{}, err
		}
	}
	old := sb.Status.DeepCopy()
	wait, err := r.sync(ctx, &sb)
	if sb.UID == "" {
		return ctrl.Result{}, err // it was deleted
	}
	if err != nil {
		wait, err = r.failed(&sb, err)
	}
	if !equality.Semantic.DeepEqual(old, &sb.Status) {
		err = errors.Join(err, r.Status().Update(ctx, &sb))
	}
	return ctrl.Result{RequeueAfter: wait}, client.IgnoreNotFound(err)
}

// delete ends the sandbox, and lets the object go. It is tried again while Cove is away.
func (r *Sandboxes) delete(ctx context.Context, sb *agents.Sandbox) error {
	if !controllerutil.ContainsFinalizer(sb, finalizer) {
		return nil
	}
	if err := remove(ctx, r.Cove, sb); err != nil {
		return err
	}
	before := sb.DeepCopy()
	controllerutil.RemoveFinalizer(sb, finalizer)
	return client.IgnoreNotFound(r.Patch(ctx, sb, client.MergeFrom(before)))
}

// set sets a condition.
func set(sb *agents.Sandbox, kind string, status bool, reason, message string) {
	s := metav1.ConditionFalse
	if status {
		s = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&sb.Status.Conditions, metav1.Condition{Type: kind, Status: s, Reason: reason, Message: message, ObservedGeneration: sb.Generation})
}

// failed says in the status why a step has failed, and whether it is tried again.
func (r *Sandboxes) failed(sb *agents.Sandbox, err error) (time.Duration, error) {
	var unsupported *plan.Error
	message := sandbox.MessageOf(err)
	switch code := sandbox.CodeOf(err); {
	case errors.As(err, &unsupported):
		set(sb, agents.ConditionReady, false, reasonUnsupported, unsupported.Error())
		return again, nil // or when the object changes
	case code == sandbox.CodeUnsupported:
		set(sb, agents.ConditionReady, false, reasonUnsupported, message)
		return later, nil
	case code == sandbox.CodeInvalid, code == sandbox.CodeNotFound, code == sandbox.CodeForbidden, code == sandbox.CodeUnauthenticated:
		set(sb, agents.ConditionReady, false, reasonRefused, message)
		return later, nil
	case code == sandbox.CodeQuotaExceeded, code == sandbox.CodeUnavailable, code == sandbox.CodeConflict, code == sandbox.CodeNotRunning:
		set(sb, agents.ConditionReady, false, reasonUnavailable, message)
		var e *sandbox.Error
		if errors.As(err, &e) && e.RetryAfter > 0 {
			return e.RetryAfter, nil
		}
	case code == sandbox.CodeInternal: // of Kubernetes, a registry or Cove
		set(sb, agents.ConditionReady, false, agents.ReasonNotReady, err.Error())
	}
	return 0, err
}

// sync makes the sandbox as the object says, and says in the status what it is.
func (r *Sandboxes) sync(ctx context.Context, sb *agents.Sandbox) (time.Duration, error) {
	wait := again
	if t := sb.Spec.ShutdownTime; t != nil {
		left := t.Sub(r.Now())
		if left <= 0 {
			return 0, r.expire(ctx, sb)
		}
		wait = min(wait, left)
	}
	if meta.IsStatusConditionTrue(sb.Status.Conditions, agents.ConditionFinished) {
		return wait, nil
	}
	found, err := find(ctx, r.Cove, sb)
	if errors.Is(err, errGone) {
		finish(sb, false, "the sandbox has ended, and Cove keeps no record of it any more")
		return wait, nil
	}
	if err != nil {
		return 0, err
	}
	if found == nil && sb.Spec.OperatingMode == agents.Suspended {
		set(sb, agents.ConditionReady, false, agents.ReasonSuspended, "the sandbox is made when operatingMode is Running")
		set(sb, agents.ConditionSuspended, true, reasonNotStarted, "nothing has run yet")
		return wait, nil
	}
	if found == nil {
		if found, err = r.make(ctx, sb); err != nil || found == nil {
			return soon, err
		}
	}
	if found.State.Final() {
		finish(sb, false, cmp.Or(found.Reason, "the sandbox has ended"))
		return wait, nil
	}
	rec := recordOf(sb)
	if rec == nil {
		return 0, &plan.Error{Problems: []string{"the annotation " + recordAnnotation + " was removed; delete the object and make it again"}}
	}
	next, err := r.operate(ctx, sb, found, rec)
	if next > 0 {
		wait = min(wait, next)
	}
	return wait, err
}

// make makes the sandbox of an object that has none. It returns nil while the template of
// the image is built.
func (r *Sandboxes) make(ctx context.Context, sb *agents.Sandbox) (*sandbox.Sandbox, error) {
	p, err := plan.Of(&sb.Spec.SandboxBlueprint, plan.Object{Namespace: sb.Namespace, Name: sb.Name, ID: string(sb.UID)}, r.Templates)
	if err != nil {
		return nil, err
	}
	rec, hash := recordOf(sb), hashOf(sb.Spec.SandboxBlueprint)
	if rec == nil || rec.Spec != hash {
		if rec, err = resolve(ctx, p); err != nil {
			return nil, err
		}
		rec.Spec = hash
		data, err := json.Marshal(rec)
		if err != nil {
			return nil, err
		}
		if err := r.annotate(ctx, sb, map[string]string{recordAnnotation: string(data)}); err != nil {
			return nil, err
		}
	}
	t, err := template(ctx, r.Cove, rec, r.Now())
	if err != nil {
		return nil, err
	}
	if t == nil {
		set(sb, agents.ConditionReady, false, agents.ReasonNotReady, "Cove makes the template "+rec.Template+" of the image "+rec.Image)
		return nil, nil
	}
	if err := checkUser(p, t); err != nil {
		return nil, err
	}
	return create(ctx, r.Cove, sb, p, rec.Template)
}

// annotate writes annotations, and keeps the status as it is in memory.
func (r *Sandboxes) annotate(ctx context.Context, sb *agents.Sandbox, a map[string]string) error {
	status, before := sb.Status.DeepCopy(), sb.DeepCopy()
	if sb.Annotations == nil {
		sb.Annotations = map[string]string{}
	}
	maps.Copy(sb.Annotations, a)
	err := r.Patch(ctx, sb, client.MergeFrom(before))
	sb.Status = *status
	return err
}

// finish says that the sandbox has ended for ever.
func finish(sb *agents.Sandbox, succeeded bool, message string) {
	reason := agents.ReasonFailed
	if succeeded {
		reason = agents.ReasonSucceeded
	}
	set(sb, agents.ConditionFinished, true, reason, message)
	set(sb, agents.ConditionReady, false, reason, message)
	meta.RemoveStatusCondition(&sb.Status.Conditions, agents.ConditionSuspended)
}

// expire ends the sandbox of an object whose time has come, and the object if it says so.
func (r *Sandboxes) expire(ctx context.Context, sb *agents.Sandbox) error {
	if err := remove(ctx, r.Cove, sb); err != nil {
		return err
	}
	set(sb, agents.ConditionReady, false, agents.ReasonExpired, "shutdownTime has passed")
	meta.RemoveStatusCondition(&sb.Status.Conditions, agents.ConditionSuspended)
	if p := sb.Spec.ShutdownPolicy; p != nil && *p == agents.ShutdownDelete {
		err := r.Delete(ctx, sb, client.Preconditions{UID: &sb.UID})
		if client.IgnoreNotFound(err) == nil {
			sb.UID = ""
		}
		return client.IgnoreNotFound(err)
	}
	return nil
}
