// Package v1beta1 has the objects of the group extensions.agents.x-k8s.io that Cove
// serves: templates of Sandboxes, pools of Sandboxes that are ready, and claims for one.
//
// +kubebuilder:object:generate=true
// +groupName=extensions.agents.x-k8s.io
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of these objects.
var GroupVersion = schema.GroupVersion{Group: "extensions.agents.x-k8s.io", Version: "v1beta1"}

// AddToScheme makes these objects known to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &SandboxTemplate{}, &SandboxTemplateList{}, &SandboxClaim{}, &SandboxClaimList{}, &SandboxWarmPool{}, &SandboxWarmPoolList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
