package controllers

import (
	"cmp"
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	agents "github.com/cove-sh/cove/deploy/controller/api/agents/v1beta1"
	extensions "github.com/cove-sh/cove/deploy/controller/api/extensions/v1beta1"
)

// replaceAfter is how long a Sandbox that has ended stays in its pool, so that one which
// ends at once is not made again and again.
const replaceAfter = 30 * time.Second

// Pools keeps the Sandboxes of pools.
type Pools struct {
	client.Client
	// Reader reads from the API server, and not what is remembered of it, which may not
	// have the Sandbox yet that was made a moment ago.
	Reader client.Reader
	Events events.EventRecorder
	Now    func() time.Time
}

// Reconcile makes as many Sandboxes as a pool is to have, and deletes the others.
func (r *Pools) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var pool extensions.SandboxWarmPool
	if err := r.Get(ctx, req.NamespacedName, &pool); err != nil || !pool.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	var t extensions.SandboxTemplate
	if err := r.Get(ctx, client.ObjectKey{Namespace: pool.Namespace, Name: pool.Spec.TemplateRef.Name}, &t); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.Events.Eventf(&pool, nil, corev1.EventTypeWarning, "TemplateNotFound", "Fill", "there is no SandboxTemplate %s", pool.Spec.TemplateRef.Name)
		}
		return ctrl.Result{RequeueAfter: later}, client.IgnoreNotFound(err)
	}
	fresh, err := fromTemplate(&t)
	if err != nil {
		r.Events.Eventf(&pool, &t, corev1.EventTypeWarning, reasonUnsupported, "Fill", "%s", err.Error())
		return ctrl.Result{}, nil // until the template changes
	}
	all, err := waiting(ctx, r.Reader, &pool)
	if err != nil {
		return ctrl.Result{}, err
	}
	kept, gone, wait := r.choose(&pool, all, fresh.Labels[agents.TemplateHashLabel])
	for _, sb := range gone {
		// One that was claimed meanwhile has another version.
		if err := r.Delete(ctx, &sb, client.Preconditions{UID: &sb.UID, ResourceVersion: &sb.ResourceVersion}); client.IgnoreNotFound(err) != nil {
			return ctrl.Result{}, err
		}
	}
	for n := len(kept); n < int(pool.Spec.Replicas); n++ {
		sb := fresh.DeepCopy()
		sb.GenerateName = pool.Name + "-"
		sb.Labels = with(sb.Labels, map[string]string{agents.WarmPoolLabel: string(pool.UID), agents.LaunchTypeLabel: agents.LaunchWarm})
		sb.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(&pool, extensions.GroupVersion.WithKind("SandboxWarmPool"))}
		if err := r.Create(ctx, sb); err != nil {
			return ctrl.Result{}, err
		}
		kept = append(kept, *sb)
	}
	status := extensions.SandboxWarmPoolStatus{Replicas: int32(len(kept)), Selector: agents.WarmPoolLabel + "=" + string(pool.UID)}
	for _, sb := range kept {
		if meta.IsStatusConditionTrue(sb.Status.Conditions, agents.ConditionReady) {
			status.ReadyReplicas++
		}
	}
	if status != pool.Status {
		pool.Status = status
		err = r.Status().Update(ctx, &pool)
	}
	return ctrl.Result{RequeueAfter: wait}, client.IgnoreNotFound(err)
}

// waiting returns the Sandboxes that wait in a pool.
func waiting(ctx context.Context, from client.Reader, pool *extensions.SandboxWarmPool) ([]agents.Sandbox, error) {
	var list agents.SandboxList
	if err := from.List(ctx, &list, client.InNamespace(pool.Namespace), client.MatchingLabels{agents.WarmPoolLabel: string(pool.UID)}); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(sb agents.Sandbox) bool {
		return !sb.DeletionTimestamp.IsZero() || !metav1.IsControlledBy(&sb, pool)
	}), nil
}

// choose says which Sandboxes of a pool stay. Those that have ended go, and those of an
// old template, unless they are ready and may be used up; then those that are too many.
func (r *Pools) choose(pool *extensions.SandboxWarmPool, all []agents.Sandbox, hash string) (kept, gone []agents.Sandbox, wait time.Duration) {
	recreate := pool.Spec.UpdateStrategy != nil && pool.Spec.UpdateStrategy.Type == extensions.UpdateRecreate
	for _, sb := range all {
		ended := meta.FindStatusCondition(sb.Status.Conditions, agents.ConditionFinished)
		ready := meta.IsStatusConditionTrue(sb.Status.Conditions, agents.ConditionReady)
		switch {
		case ended != nil && ended.Status == metav1.ConditionTrue:
			if left := ended.LastTransitionTime.Add(replaceAfter).Sub(r.Now()); left > 0 {
				kept, wait = append(kept, sb), max(wait, left)
			} else {
				gone = append(gone, sb)
			}
		case sb.Labels[agents.TemplateHashLabel] != hash && (recreate || !ready):
			gone = append(gone, sb)
		default:
			kept = append(kept, sb)
		}
	}
	sortReady(kept)
	if most := int(pool.Spec.Replicas); len(kept) > most {
		kept, gone = kept[:most], append(gone, kept[most:]...)
	}
	return kept, gone, wait
}

// sortReady puts Sandboxes that are ready first, and of those the oldest.
func sortReady(all []agents.Sandbox) {
	rank := func(sb *agents.Sandbox) int {
		if meta.IsStatusConditionTrue(sb.Status.Conditions, agents.ConditionReady) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(all, func(a, b agents.Sandbox) int {
		return cmp.Or(rank(&a)-rank(&b), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
}
