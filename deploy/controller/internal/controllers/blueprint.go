package controllers

import (
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	agents "github.com/cove-sh/cove/deploy/controller/api/agents/v1beta1"
	extensions "github.com/cove-sh/cove/deploy/controller/api/extensions/v1beta1"
	"github.com/cove-sh/cove/deploy/controller/internal/plan"
)

// fromTemplate returns a Sandbox of a template, without a name. The error is a
// [plan.Error].
func fromTemplate(t *extensions.SandboxTemplate) (*agents.Sandbox, error) {
	var problems []string
	sb := &agents.Sandbox{ObjectMeta: metav1.ObjectMeta{
		Namespace: t.Namespace, Labels: map[string]string{agents.TemplateHashLabel: hashOf(t.Spec)}, Annotations: map[string]string{agents.TemplateRefAnnotation: t.Name},
	}}
	sb.Spec.SandboxBlueprint = *t.Spec.SandboxBlueprint.DeepCopy()
	sb.Spec.OperatingMode = agents.Running
	pod := &sb.Spec.PodTemplate
	if pod.Spec.AutomountServiceAccountToken == nil {
		pod.Spec.AutomountServiceAccountToken = new(bool)
	}
	if len(t.Spec.GeneratedSecrets) > 0 {
		problems = append(problems, "generatedSecrets: values of Secrets do not enter a sandbox; let the command generate them, or use a secret of Cove")
	}
	if t.Spec.NetworkPolicy != nil && t.Spec.NetworkPolicyManagement != extensions.NetworkUnmanaged {
		network, err := plan.Network(t.Spec.NetworkPolicy)
		switch {
		case err != nil:
			problems = append(problems, err.Error())
		case pod.ObjectMeta.Annotations[plan.NetworkAnnotation] != "":
			problems = append(problems, "networkPolicy: the podTemplate has the annotation "+plan.NetworkAnnotation+" too; keep one of them")
		default:
			pod.ObjectMeta.Annotations = with(pod.ObjectMeta.Annotations, map[string]string{plan.NetworkAnnotation: network})
		}
	}
	if len(problems) > 0 {
		return nil, &plan.Error{Problems: problems}
	}
	return sb, nil
}

// with returns a map with more entries.
func with(m, more map[string]string) map[string]string {
	if m = maps.Clone(m); m == nil {
		m = map[string]string{}
	}
	maps.Copy(m, more)
	return m
}

// claimed makes a Sandbox one of a claim.
func claimed(sb *agents.Sandbox, claim *extensions.SandboxClaim, launch string) {
	delete(sb.Labels, agents.WarmPoolLabel)
	sb.Labels = with(sb.Labels, map[string]string{extensions.ClaimUIDLabel: string(claim.UID), agents.LaunchTypeLabel: launch})
	sb.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(claim, extensions.GroupVersion.WithKind("SandboxClaim"))}
	m := &sb.Spec.PodTemplate.ObjectMeta
	if more := claim.Spec.AdditionalPodMetadata; len(more.Labels)+len(more.Annotations) > 0 {
		m.Labels, m.Annotations = with(m.Labels, more.Labels), with(m.Annotations, more.Annotations)
	}
}

// checkClaim refuses a claim that may not add what it adds to a template. Annotations of
// Cove decide about the network and secrets, which is for the template alone.
func checkClaim(claim *extensions.SandboxClaim, t *extensions.SandboxTemplate) error {
	var problems []string
	for name := range claim.Spec.AdditionalPodMetadata.Annotations {
		if strings.HasPrefix(name, "cove.sh/") {
			problems = append(problems, "additionalPodMetadata: "+name+" is for the template")
		}
	}
	containers := t.Spec.PodTemplate.Spec.Containers
	for _, e := range claim.Spec.Env {
		switch {
		case t.Spec.EnvVarsInjectionPolicy != extensions.InjectionAllowed && t.Spec.EnvVarsInjectionPolicy != extensions.InjectionOverrides:
			problems = append(problems, fmt.Sprintf("env (%s): the template's envVarsInjectionPolicy is Disallowed", e.Name))
		case len(containers) == 0 || e.ContainerName != "" && e.ContainerName != containers[0].Name:
			problems = append(problems, fmt.Sprintf("env (%s): the template has no container %q", e.Name, e.ContainerName))
		case t.Spec.EnvVarsInjectionPolicy != extensions.InjectionOverrides && hasEnv(containers[0].Env, e.Name):
			problems = append(problems, fmt.Sprintf("env (%s): the template has it, and its envVarsInjectionPolicy is not Overrides", e.Name))
		}
	}
	if len(problems) > 0 {
		return &plan.Error{Problems: problems}
	}
	return nil
}

func hasEnv(env []corev1.EnvVar, name string) bool {
	for _, e := range env {
		if e.Name == name {
			return true
		}
	}
	return false
}

// inject adds the variables of a claim.
func inject(sb *agents.Sandbox, claim *extensions.SandboxClaim) {
	if len(claim.Spec.Env) == 0 {
		return
	}
	c := &sb.Spec.PodTemplate.Spec.Containers[0]
	for _, e := range claim.Spec.Env {
		kept := c.Env[:0]
		for _, old := range c.Env {
			if old.Name != e.Name {
				kept = append(kept, old)
			}
		}
		c.Env = append(kept, corev1.EnvVar{Name: e.Name, Value: e.Value})
	}
}
