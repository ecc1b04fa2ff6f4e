package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// SandboxTemplateRef names a SandboxTemplate of the same namespace.
type SandboxTemplateRef struct {
	// +required
	Name string `json:"name"`
}

// UpdateStrategyType says what becomes of waiting Sandboxes when their template changes.
// +kubebuilder:validation:Enum=Recreate;OnReplenish
type UpdateStrategyType string

// The update strategies: new ones at once, or only in place of those that are taken.
const (
	UpdateRecreate    UpdateStrategyType = "Recreate"
	UpdateOnReplenish UpdateStrategyType = "OnReplenish"
)

// SandboxWarmPoolUpdateStrategy has the update strategy of a pool.
type SandboxWarmPoolUpdateStrategy struct {
	// +kubebuilder:default=OnReplenish
	// +optional
	Type UpdateStrategyType `json:"type,omitempty"`
}

// SandboxWarmPoolSpec is what a pool should be.
type SandboxWarmPoolSpec struct {
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	Replicas int32 `json:"replicas"`
	// +required
	TemplateRef SandboxTemplateRef `json:"sandboxTemplateRef,omitempty"`
	// +optional
	UpdateStrategy *SandboxWarmPoolUpdateStrategy `json:"updateStrategy,omitempty"`
}

// SandboxWarmPoolStatus is what a pool is.
type SandboxWarmPoolStatus struct {
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// +optional
	ReadyReplicas int32 `json:"readyReplicas,omitempty"`
	// Selector finds the Sandboxes of the pool.
	// +optional
	Selector string `json:"selector,omitempty"`
}

// SandboxWarmPool keeps Sandboxes that wait for a claim.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:resource:scope=Namespaced,shortName=swp
// +kubebuilder:printcolumn:name="Ready",type="integer",JSONPath=".status.readyReplicas"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type SandboxWarmPool struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// +required
	Spec SandboxWarmPoolSpec `json:"spec"`
	// +optional
	Status SandboxWarmPoolStatus `json:"status,omitzero"`
}

// SandboxWarmPoolList is a list of SandboxWarmPools.
// +kubebuilder:object:root=true
type SandboxWarmPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SandboxWarmPool `json:"items"`
}
