package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	agents "github.com/cove-sh/cove/deploy/controller/api/agents/v1beta1"
	extensions "github.com/cove-sh/cove/deploy/controller/api/extensions/v1beta1"
	"github.com/cove-sh/cove/deploy/controller/internal/plan"
)

// Claims gives each claim a Sandbox.
type Claims struct {
	client.Client
	// Reader reads from the API server; see [Pools].
	Reader client.Reader
	Now    func() time.Time
}

// Reconcile gives a claim a Sandbox of its pool, or one of its own, and shows its
// conditions.
func (r *Claims) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var claim extensions.SandboxClaim
	if err := r.Get(ctx, req.NamespacedName, &claim); err != nil || !claim.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, client.IgnoreNotFound(err) // its Sandbox goes with it
	}
	old := claim.Status.DeepCopy()
	wait, err := r.sync(ctx, &claim)
	if claim.UID == "" {
		return ctrl.Result{}, err // it was deleted
	}
	var unsupported *plan.Error
	if errors.As(err, &unsupported) {
		notReady(&claim, reasonUnsupported, unsupported.Error())
		wait, err = later, nil
	}
	if !equality.Semantic.DeepEqual(old, &claim.Status) {
		err = errors.Join(err, r.Status().Update(ctx, &claim))
	}
	return ctrl.Result{RequeueAfter: wait}, client.IgnoreNotFound(err)
}

func notReady(claim *extensions.SandboxClaim, reason, message string) {
	meta.SetStatusCondition(&claim.Status.Conditions, metav1.Condition{
		Type: agents.ConditionReady, Status: metav1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: claim.Generation,
	})
}

func (r *Claims) sync(ctx context.Context, claim *extensions.SandboxClaim) (time.Duration, error) {
	sb, err := r.current(ctx, claim)
	if err != nil {
		return 0, err
	}
	wait := again
	if at := expiry(claim); at != nil {
		left := at.Sub(r.Now())
		if left <= 0 {
			return 0, r.expire(ctx, claim, sb)
		}
		wait = min(wait, left)
	}
	if sb == nil && claim.Status.Sandbox.Name != "" {
		notReady(claim, "SandboxNotFound", "its Sandbox "+claim.Status.Sandbox.Name+" was deleted; delete the claim and make it again")
		return wait, nil
	}
	if sb == nil {
		if sb, err = r.take(ctx, claim); err != nil || sb == nil {
			return later, err
		}
	}
	claim.Status.Sandbox.Name = sb.Name
	for _, c := range sb.Status.Conditions {
		c.ObservedGeneration = claim.Generation
		meta.SetStatusCondition(&claim.Status.Conditions, c)
	}
	for _, kind := range []string{agents.ConditionSuspended, agents.ConditionFinished, ConditionIgnored} {
		if meta.FindStatusCondition(sb.Status.Conditions, kind) == nil {
			meta.RemoveStatusCondition(&claim.Status.Conditions, kind)
		}
	}
	if len(sb.Status.Conditions) == 0 {
		notReady(claim, agents.ReasonNotReady, "its Sandbox "+sb.Name+" is new")
	}
	return wait, nil
}

// current returns the Sandbox that a claim has, or nil.
func (r *Claims) current(ctx context.Context, claim *extensions.SandboxClaim) (*agents.Sandbox, error) {
	var list agents.SandboxList
	if err := r.Reader.List(ctx, &list, client.InNamespace(claim.Namespace), client.MatchingLabels{extensions.ClaimUIDLabel: string(claim.UID)}); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if metav1.IsControlledBy(&list.Items[i], claim) {
			return &list.Items[i], nil
		}
	}
	return nil, nil
}

// take gives a claim one of the Sandboxes of its pool, or a new one. It returns nil, with
// the reason in the status, if there is no pool or no template.
func (r *Claims) take(ctx context.Context, claim *extensions.SandboxClaim) (*agents.Sandbox, error) {
	var pool extensions.SandboxWarmPool
	var t extensions.SandboxTemplate
	if err := r.Get(ctx, client.ObjectKey{Namespace: claim.Namespace, Name: claim.Spec.WarmPoolRef.Name}, &pool); err != nil {
		notReady(claim, "WarmPoolNotFound", "there is no SandboxWarmPool "+claim.Spec.WarmPoolRef.Name)
		return nil, client.IgnoreNotFound(err)
	}
	if err := r.Get(ctx, client.ObjectKey{Namespace: claim.Namespace, Name: pool.Spec.TemplateRef.Name}, &t); err != nil {
		notReady(claim, "TemplateNotFound", "there is no SandboxTemplate "+pool.Spec.TemplateRef.Name)
		return nil, client.IgnoreNotFound(err)
	}
	if err := checkClaim(claim, &t); err != nil {
		return nil, err
	}
	if len(claim.Spec.Env) == 0 {
		all, err := waiting(ctx, r.Reader, &pool)
		if err != nil {
			return nil, err
		}
		sortReady(all)
		for _, sb := range all {
			if meta.IsStatusConditionTrue(sb.Status.Conditions, agents.ConditionFinished) {
				continue
			}
			// The version says that nobody else has taken it.
			claimed(&sb, claim, agents.LaunchWarm)
			if err := r.Update(ctx, &sb); err == nil {
				return &sb, nil
			} else if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				return nil, err
			}
		}
	}
	sb, err := fromTemplate(&t)
	if err != nil {
		return nil, err
	}
	sb.Name = claim.Name
	inject(sb, claim)
	claimed(sb, claim, agents.LaunchCold)
	err = r.Create(ctx, sb)
	if apierrors.IsAlreadyExists(err) {
		notReady(claim, "NameTaken", fmt.Sprintf("there is a Sandbox %s, which is not the claim's; give the claim another name", sb.Name))
		return nil, nil
	}
	return sb, err
}

// expiry is when a claim expires, or nil.
func expiry(claim *extensions.SandboxClaim) *time.Time {
	l := claim.Spec.Lifecycle
	if l == nil {
		return nil
	}
	var at *time.Time
	if l.ShutdownTime != nil {
		at = &l.ShutdownTime.Time
	}
	ended := meta.FindStatusCondition(claim.Status.Conditions, agents.ConditionFinished)
	if l.TTLSecondsAfterFinished != nil && ended != nil && ended.Status == metav1.ConditionTrue {
		t := ended.LastTransitionTime.Add(time.Duration(*l.TTLSecondsAfterFinished) * time.Second)
		if at == nil || t.Before(*at) {
			at = &t
		}
	}
	return at
}

// expire deletes the Sandbox of a claim, and the claim if it says so.
func (r *Claims) expire(ctx context.Context, claim *extensions.SandboxClaim, sb *agents.Sandbox) error {
	notReady(claim, extensions.ReasonClaimExpired, "the claim has expired")
	if sb != nil {
		if err := r.Delete(ctx, sb, client.Preconditions{UID: &sb.UID}); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	policy := metav1.DeletePropagationBackground
	switch claim.Spec.Lifecycle.ShutdownPolicy {
	case extensions.ShutdownDelete:
	case extensions.ShutdownDeleteForeground:
		policy = metav1.DeletePropagationForeground
	default:
		return nil
	}
	err := r.Delete(ctx, claim, client.Preconditions{UID: &claim.UID}, client.PropagationPolicy(policy))
	if client.IgnoreNotFound(err) == nil {
		claim.UID = ""
	}
	return client.IgnoreNotFound(err)
}
