package controllers

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	agents "github.com/cove-sh/cove/deploy/controller/api/agents/v1beta1"
	extensions "github.com/cove-sh/cove/deploy/controller/api/extensions/v1beta1"
	"github.com/cove-sh/cove/deploy/controller/internal/plan"
	"github.com/cove-sh/cove/sandbox"
)

var now = time.Date(2026, 5, 4, 10, 0, 0, 0, time.UTC)

func TestAfterEnd(t *testing.T) {
	for _, c := range []struct {
		policy corev1.RestartPolicy
		code   int
		times  int
		ago    time.Duration
		ended  bool
		wait   time.Duration
	}{
		{corev1.RestartPolicyNever, 0, 1, 0, true, 0},
		{corev1.RestartPolicyNever, 3, 1, 0, true, 0},
		{corev1.RestartPolicyOnFailure, 0, 1, 0, true, 0},
		{corev1.RestartPolicyOnFailure, 3, 1, 0, false, 10 * time.Second},
		{corev1.RestartPolicyAlways, 0, 1, 4 * time.Second, false, 6 * time.Second},
		{corev1.RestartPolicyAlways, 0, 1, time.Minute, false, 0},
		{corev1.RestartPolicyAlways, 1, 3, 0, false, 40 * time.Second},
		{corev1.RestartPolicyAlways, 1, 200, 0, false, 5 * time.Minute},
	} {
		ended := now.Add(-c.ago)
		got := afterEnd(c.policy, &sandbox.Job{ExitCode: c.code, StartedAt: ended, EndedAt: &ended}, c.times, now)
		if got.ended != c.ended || got.wait != c.wait || !strings.Contains(got.what, fmt.Sprint("exit code ", c.code)) {
			t.Errorf("%+v: got %+v", c, got)
		}
	}
}

// member is a Sandbox of a pool.
func member(name, hash string, ready bool, finished time.Duration) agents.Sandbox {
	sb := agents.Sandbox{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{agents.TemplateHashLabel: hash}}}
	set(&sb, agents.ConditionReady, ready, "Test", "")
	if finished > 0 {
		set(&sb, agents.ConditionFinished, true, "Test", "")
		sb.Status.Conditions[1].LastTransitionTime = metav1.NewTime(now.Add(-finished))
	}
	return sb
}

func TestChoose(t *testing.T) {
	all := []agents.Sandbox{
		member("starting", "new", false, 0), member("ready", "new", true, 0), member("old", "old", true, 0), member("old-starting", "old", false, 0),
		member("ended", "new", false, time.Hour), member("just-ended", "new", false, time.Second),
	}
	for _, c := range []struct {
		replicas int32
		strategy extensions.UpdateStrategyType
		kept     string
		wait     time.Duration
	}{
		{6, extensions.UpdateOnReplenish, "old ready just-ended starting", 29 * time.Second},
		{6, extensions.UpdateRecreate, "ready just-ended starting", 29 * time.Second},
		{2, extensions.UpdateOnReplenish, "old ready", 29 * time.Second},
		{0, extensions.UpdateOnReplenish, "", 29 * time.Second},
	} {
		pool := &extensions.SandboxWarmPool{Spec: extensions.SandboxWarmPoolSpec{Replicas: c.replicas, UpdateStrategy: &extensions.SandboxWarmPoolUpdateStrategy{Type: c.strategy}}}
		r := &Pools{Now: func() time.Time { return now }}
		kept, gone, wait := r.choose(pool, slices.Clone(all), "new")
		var names []string
		for _, sb := range kept {
			names = append(names, sb.Name)
		}
		if got := strings.Join(names, " "); got != c.kept || wait != c.wait || len(kept)+len(gone) != len(all) {
			t.Errorf("%+v: kept %s, %d are gone, wait %s", c, got, len(gone), wait)
		}
	}
}

func TestClaimOfTemplate(t *testing.T) {
	tpl := func(policy string) *extensions.SandboxTemplate {
		t := &extensions.SandboxTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t", Namespace: "n"}}
		t.Spec.EnvVarsInjectionPolicy = policy
		t.Spec.NetworkPolicy = &extensions.NetworkPolicySpec{}
		t.Spec.PodTemplate.Spec.Containers = []corev1.Container{{Name: "app", Env: []corev1.EnvVar{{Name: "A", Value: "template"}}}}
		return t
	}
	for _, c := range []struct {
		policy string
		env    []extensions.EnvVar
		more   map[string]string
		want   string // env, or the problem
	}{
		{"", nil, nil, "A=template"},
		{"", []extensions.EnvVar{{Name: "B", Value: "b"}}, nil, "Disallowed"},
		{extensions.InjectionAllowed, []extensions.EnvVar{{Name: "B", Value: "b", ContainerName: "app"}}, nil, "A=template B=b"},
		{extensions.InjectionAllowed, []extensions.EnvVar{{Name: "A", Value: "claim"}}, nil, "not Overrides"},
		{extensions.InjectionOverrides, []extensions.EnvVar{{Name: "A", Value: "claim"}}, nil, "A=claim"},
		{extensions.InjectionAllowed, []extensions.EnvVar{{Name: "B", ContainerName: "other"}}, nil, `no container "other"`},
		{"", nil, map[string]string{plan.NetworkAnnotation: "open"}, "is for the template"},
	} {
		claim := &extensions.SandboxClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "claim-uid"}}
		claim.Spec.Env, claim.Spec.AdditionalPodMetadata.Annotations = c.env, c.more
		template := tpl(c.policy)
		err := checkClaim(claim, template)
		if err != nil {
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		sb, err := fromTemplate(template)
		if err != nil {
			t.Fatal(err)
		}
		inject(sb, claim)
		claimed(sb, claim, agents.LaunchCold)
		var env []string
		for _, e := range sb.Spec.PodTemplate.Spec.Containers[0].Env {
			env = append(env, e.Name+"="+e.Value)
		}
		if got := strings.Join(env, " "); got != c.want {
			t.Errorf("%+v: the environment is %s", c, got)
		}
		if !metav1.IsControlledBy(sb, claim) || sb.Labels[extensions.ClaimUIDLabel] != "claim-uid" || sb.Spec.PodTemplate.ObjectMeta.Annotations[plan.NetworkAnnotation] != `{"preset":"none"}` {
			t.Errorf("%+v: the Sandbox is %+v", c, sb)
		}
		if len(template.Spec.PodTemplate.Spec.Containers[0].Env) != 1 {
			t.Error("the template was changed")
		}
	}
}

func TestExpiry(t *testing.T) {
	seconds := int32(60)
	claim := &extensions.SandboxClaim{}
	if got := expiry(claim); got != nil {
		t.Errorf("without a lifecycle: %s", got)
	}
	claim.Spec.Lifecycle = &extensions.Lifecycle{TTLSecondsAfterFinished: &seconds}
	if got := expiry(claim); got != nil {
		t.Errorf("before it has finished: %s", got)
	}
	claim.Status.Conditions = []metav1.Condition{{Type: agents.ConditionFinished, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)}}
	if got := expiry(claim); got == nil || !got.Equal(now.Add(time.Minute)) {
		t.Errorf("after it has finished: %v", got)
	}
	claim.Spec.Lifecycle.ShutdownTime = &metav1.Time{Time: now.Add(time.Second)}
	if got := expiry(claim); got == nil || !got.Equal(now.Add(time.Second)) {
		t.Errorf("with an earlier shutdownTime: %v", got)
	}
}
