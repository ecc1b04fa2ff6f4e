// Package v1beta1 has the objects of the group agents.x-k8s.io that Cove serves. Names,
// defaults and meanings of fields are those of the project agent-sandbox
// (kubernetes-sigs/agent-sandbox), whose manifests apply unchanged; what is different in
// Cove is in docs/agent-sandbox.md.
//
// +kubebuilder:object:generate=true
// +groupName=agents.x-k8s.io
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of these objects.
var GroupVersion = schema.GroupVersion{Group: "agents.x-k8s.io", Version: "v1beta1"}

// AddToScheme makes these objects known to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &Sandbox{}, &SandboxList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
