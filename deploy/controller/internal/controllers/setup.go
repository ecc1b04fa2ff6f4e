package controllers

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	agents "github.com/cove-sh/cove/deploy/controller/api/agents/v1beta1"
	extensions "github.com/cove-sh/cove/deploy/controller/api/extensions/v1beta1"
	"github.com/cove-sh/cove/sandbox"
)

// Scheme knows the objects.
func Scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(s))
	utilruntime.Must(agents.AddToScheme(s))
	utilruntime.Must(extensions.AddToScheme(s))
	return s
}

// workers is how many Sandboxes are worked on at once.
const workers = 8

// Setup adds the controllers to a manager.
func Setup(mgr ctrl.Manager, cove sandbox.Service, templates map[string]string) error {
	c := mgr.GetClient()
	changed := make(chan event.GenericEvent)
	if err := mgr.Add(&Follower{Client: c, Cove: cove, Out: changed}); err != nil {
		return err
	}
	err := ctrl.NewControllerManagedBy(mgr).For(&agents.Sandbox{}).
		WatchesRawSource(source.Channel(changed, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(&Sandboxes{Client: c, Cove: cove, Templates: templates, Now: time.Now})
	if err != nil {
		return err
	}
	err = ctrl.NewControllerManagedBy(mgr).For(&extensions.SandboxWarmPool{}).Owns(&agents.Sandbox{}).
		Watches(&extensions.SandboxTemplate{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, t client.Object) []reconcile.Request {
			return poolsOf(ctx, c, t)
		})).
		Complete(&Pools{Client: c, Reader: mgr.GetAPIReader(), Events: mgr.GetEventRecorder("cove"), Now: time.Now})
	if err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).For(&extensions.SandboxClaim{}).Owns(&agents.Sandbox{}).
		Watches(&extensions.SandboxWarmPool{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, pool client.Object) []reconcile.Request {
			return claimsOf(ctx, c, pool)
		})).
		Complete(&Claims{Client: c, Reader: mgr.GetAPIReader(), Now: time.Now})
}

// poolsOf returns the pools of a template.
func poolsOf(ctx context.Context, c client.Client, t client.Object) (all []reconcile.Request) {
	var list extensions.SandboxWarmPoolList
	if err := c.List(ctx, &list, client.InNamespace(t.GetNamespace())); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "pools cannot be listed")
	}
	for _, pool := range list.Items {
		if pool.Spec.TemplateRef.Name == t.GetName() {
			all = append(all, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&pool)})
		}
	}
	return all
}

// claimsOf returns the claims that wait for a pool.
func claimsOf(ctx context.Context, c client.Client, pool client.Object) (all []reconcile.Request) {
	var list extensions.SandboxClaimList
	if err := c.List(ctx, &list, client.InNamespace(pool.GetNamespace())); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "claims cannot be listed")
	}
	for _, claim := range list.Items {
		if claim.Spec.WarmPoolRef.Name == pool.GetName() && claim.Status.Sandbox.Name == "" {
			all = append(all, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&claim)})
		}
	}
	return all
}
