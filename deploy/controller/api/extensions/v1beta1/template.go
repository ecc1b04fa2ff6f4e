package v1beta1

import (
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	agents "github.com/cove-sh/cove/deploy/controller/api/agents/v1beta1"
)

// The values of NetworkPolicyManagement.
const (
	NetworkManaged   = "Managed"
	NetworkUnmanaged = "Unmanaged"
)

// The policies for what claims may add to a template.
const (
	InjectionAllowed    = "Allowed"
	InjectionOverrides  = "Overrides"
	InjectionDisallowed = "Disallowed"
)

// NetworkPolicySpec says what sandboxes may reach, and who may reach them.
type NetworkPolicySpec struct {
	// +optional
	Ingress []networkingv1.NetworkPolicyIngressRule `json:"ingress,omitempty"`
	// +optional
	Egress []networkingv1.NetworkPolicyEgressRule `json:"egress,omitempty"`
}

// GeneratedSecretDataSpec describes an entry of a Secret that is generated.
type GeneratedSecretDataSpec struct {
	// +required
	Key string `json:"key"`
	// +kubebuilder:default=32
	// +kubebuilder:validation:Minimum=32
	// +kubebuilder:validation:Maximum=128
	// +optional
	LengthBytes int32 `json:"lengthBytes,omitempty"`
}

// GeneratedSecretSpec describes a Secret that is generated for each Sandbox.
type GeneratedSecretSpec struct {
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +required
	Name string `json:"name"`
	// +listType=map
	// +listMapKey=key
	// +kubebuilder:validation:MinItems=1
	// +required
	Data []GeneratedSecretDataSpec `json:"data"`
}

// SandboxTemplateSpec is what Sandboxes of a template are made from.
type SandboxTemplateSpec struct {
	agents.SandboxBlueprint `json:",inline"`
	// +optional
	NetworkPolicy *NetworkPolicySpec `json:"networkPolicy,omitempty"`
	// +kubebuilder:validation:Enum=Managed;Unmanaged
	// +kubebuilder:default=Managed
	// +optional
	NetworkPolicyManagement string `json:"networkPolicyManagement,omitempty"`
	// +kubebuilder:validation:Enum=Allowed;Overrides;Disallowed
	// +kubebuilder:default=Disallowed
	// +optional
	EnvVarsInjectionPolicy string `json:"envVarsInjectionPolicy,omitempty"`
	// +kubebuilder:validation:Enum=Disallowed;Allowed;Overrides
	// +kubebuilder:default=Disallowed
	// +optional
	VolumeClaimTemplatesPolicy string `json:"volumeClaimTemplatesPolicy,omitempty"`
	// +listType=map
	// +listMapKey=name
	// +optional
	GeneratedSecrets []GeneratedSecretSpec `json:"generatedSecrets,omitempty"`
}

// SandboxTemplate describes Sandboxes that pools and claims make.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced,shortName=sandboxtemplate
// +kubebuilder:storageversion
type SandboxTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// +required
	Spec SandboxTemplateSpec `json:"spec"`
}

// SandboxTemplateList is a list of SandboxTemplates.
// +kubebuilder:object:root=true
type SandboxTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SandboxTemplate `json:"items"`
}
