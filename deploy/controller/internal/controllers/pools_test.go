package controllers

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	agents "github.com/cove-sh/cove/deploy/controller/api/agents/v1beta1"
	extensions "github.com/cove-sh/cove/deploy/controller/api/extensions/v1beta1"
)

// poolRig is a pool with its template, and the two controllers that share it. test/kube has
// them on a real API server.
type poolRig struct {
	client.Client
	pools  *Pools
	claims *Claims
	events *events.FakeRecorder
	// lose makes the next write of a status fail, as if the controller ended before.
	lose bool
}

var errLost = errors.New("the controller has ended")

func newPoolRig(t *testing.T, replicas int32) *poolRig {
	t.Helper()
	tpl := &extensions.SandboxTemplate{ObjectMeta: metav1.ObjectMeta{Name: "template", Namespace: "n"}}
	tpl.Spec.PodTemplate.Spec.Containers = []corev1.Container{{Name: "app", Image: "app:1"}}
	pool := &extensions.SandboxWarmPool{ObjectMeta: metav1.ObjectMeta{Name: "pool", Namespace: "n", UID: "pool-uid"}}
	pool.Spec.Replicas, pool.Spec.TemplateRef.Name = replicas, "template"
	r := &poolRig{events: events.NewFakeRecorder(8)}
	r.Client = fake.NewClientBuilder().WithScheme(Scheme()).WithObjects(tpl, pool).
		WithStatusSubresource(&agents.Sandbox{}, &extensions.SandboxWarmPool{}, &extensions.SandboxClaim{}).
		WithInterceptorFuncs(interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			if r.lose {
				r.lose = false
				return errLost
			}
			return c.SubResource(sub).Update(ctx, o, opts...)
		}}).Build()
	clock := func() time.Time { return now }
	r.pools, r.claims = &Pools{Client: r, Reader: r, Events: r.events, Now: clock}, &Claims{Client: r, Reader: r, Now: clock}
	return r
}

func (r *poolRig) fill(t *testing.T) []agents.Sandbox {
	t.Helper()
	if _, err := r.pools.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "n", Name: "pool"}}); err != nil {
		t.Fatal(err)
	}
	var pool extensions.SandboxWarmPool
	if err := r.Get(t.Context(), client.ObjectKey{Namespace: "n", Name: "pool"}, &pool); err != nil {
		t.Fatal(err)
	}
	all, err := waiting(t.Context(), r, &pool)
	if err != nil || int(pool.Status.Replicas) != len(all) {
		t.Fatalf("%d wait, and the status says %+v, %v", len(all), pool.Status, err)
	}
	return all
}

func (r *poolRig) ready(t *testing.T, sb *agents.Sandbox) {
	t.Helper()
	set(sb, agents.ConditionReady, true, agents.ReasonReady, "")
	if err := r.Status().Update(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
}

func (r *poolRig) claim(t *testing.T, name string) (extensions.SandboxClaim, error) {
	t.Helper()
	var c extensions.SandboxClaim
	_, err := r.claims.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "n", Name: name}})
	if err := r.Get(t.Context(), client.ObjectKey{Namespace: "n", Name: name}, &c); err != nil {
		t.Fatal(err)
	}
	return c, err
}

func (r *poolRig) newClaim(t *testing.T, name string) {
	t.Helper()
	c := &extensions.SandboxClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "n", UID: types.UID("uid-of-" + name)}}
	c.Spec.WarmPoolRef.Name = "pool"
	if err := r.Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

func TestClaimTakesFromPool(t *testing.T) {
	r := newPoolRig(t, 2)
	all := r.fill(t)
	if len(all) != 2 || len(r.fill(t)) != 2 {
		t.Fatalf("the pool has %+v", all)
	}
	r.ready(t, &all[1])
	r.newClaim(t, "first")
	r.lose = true
	if _, err := r.claim(t, "first"); !errors.Is(err, errLost) {
		t.Fatalf("the status was written: %v", err)
	}
	c, err := r.claim(t, "first")
	if err != nil || c.Status.Sandbox.Name != all[1].Name || !meta.IsStatusConditionTrue(c.Status.Conditions, agents.ConditionReady) {
		t.Errorf("the claim has %+v, %v; %s was ready", c.Status, err, all[1].Name)
	}
	var sandboxes agents.SandboxList
	if err := r.List(t.Context(), &sandboxes, client.MatchingLabels{extensions.ClaimUIDLabel: "uid-of-first"}); err != nil || len(sandboxes.Items) != 1 {
		t.Errorf("the claim has %d Sandboxes, %v", len(sandboxes.Items), err)
	}
	if all = r.fill(t); len(all) != 2 {
		t.Errorf("the pool was not filled again: %+v", all)
	}

	// One that is ready is taken before others; without any, a claim gets one of its own.
	r.newClaim(t, "second")
	r.newClaim(t, "third")
	r.newClaim(t, "fourth")
	names := map[string]bool{c.Status.Sandbox.Name: true}
	for _, name := range []string{"second", "third", "fourth"} {
		c, err := r.claim(t, name)
		if err != nil {
			t.Fatal(err)
		}
		names[c.Status.Sandbox.Name] = true
	}
	if len(names) != 4 || !names["fourth"] {
		t.Errorf("the claims have %v", names)
	}

	// A Sandbox that was deleted is not replaced in silence.
	if err := r.Delete(t.Context(), &sandboxes.Items[0]); err != nil {
		t.Fatal(err)
	}
	if c, err = r.claim(t, "first"); err != nil || meta.FindStatusCondition(c.Status.Conditions, agents.ConditionReady).Reason != "SandboxNotFound" {
		t.Errorf("without its Sandbox, the claim is %+v, %v", c.Status, err)
	}
}

func TestClaimWithoutPool(t *testing.T) {
	r := newPoolRig(t, 1)
	for what, want := range map[client.Object]string{
		&extensions.SandboxTemplate{ObjectMeta: metav1.ObjectMeta{Name: "template", Namespace: "n"}}: "TemplateNotFound",
		&extensions.SandboxWarmPool{ObjectMeta: metav1.ObjectMeta{Name: "pool", Namespace: "n"}}:     "WarmPoolNotFound",
	} {
		r := newPoolRig(t, 1)
		if err := r.Delete(t.Context(), what); err != nil {
			t.Fatal(err)
		}
		r.newClaim(t, "claim")
		if c, err := r.claim(t, "claim"); err != nil || meta.FindStatusCondition(c.Status.Conditions, agents.ConditionReady).Reason != want {
			t.Errorf("%s: the claim is %+v, %v", want, c.Status, err)
		}
	}
	// A name that somebody else's Sandbox has.
	r.newClaim(t, "taken")
	if err := r.Create(t.Context(), &agents.Sandbox{ObjectMeta: metav1.ObjectMeta{Name: "taken", Namespace: "n"}}); err != nil {
		t.Fatal(err)
	}
	if c, err := r.claim(t, "taken"); err != nil || meta.FindStatusCondition(c.Status.Conditions, agents.ConditionReady).Reason != "NameTaken" {
		t.Errorf("the claim is %+v, %v", c.Status, err)
	}
}
