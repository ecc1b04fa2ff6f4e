package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	agents "github.com/cove-sh/cove/deploy/controller/api/agents/v1beta1"
)

const (
	// ReasonClaimExpired is the reason of a claim that has expired.
	ReasonClaimExpired = "ClaimExpired"
	// ClaimUIDLabel has the UID of the claim that a Sandbox belongs to.
	ClaimUIDLabel = "agents.x-k8s.io/claim-uid"
	// SandboxNameAnnotation has the name of a claim's Sandbox.
	SandboxNameAnnotation = "agents.x-k8s.io/sandbox-name"
)

// ShutdownPolicy says what becomes of a claim that has expired. Its Sandbox is deleted in
// any case.
// +kubebuilder:validation:Enum=Delete;DeleteForeground;Retain
type ShutdownPolicy string

// The shutdown policies. With DeleteForeground, the claim stays until its Sandbox is gone.
const (
	ShutdownDelete           ShutdownPolicy = "Delete"
	ShutdownDeleteForeground ShutdownPolicy = "DeleteForeground"
	ShutdownRetain           ShutdownPolicy = "Retain"
)

// Lifecycle says when a claim expires.
type Lifecycle struct {
	// +kubebuilder:validation:Format="date-time"
	// +optional
	ShutdownTime *metav1.Time `json:"shutdownTime,omitempty"`
	// +kubebuilder:validation:Minimum=0
	// +optional
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
	// +kubebuilder:default=Retain
	// +optional
	ShutdownPolicy ShutdownPolicy `json:"shutdownPolicy,omitempty"`
}

// SandboxWarmPoolRef names a SandboxWarmPool of the same namespace.
type SandboxWarmPoolRef struct {
	// +required
	Name string `json:"name"`
}

// EnvVar is a variable that a claim adds to the environment of its Sandbox.
type EnvVar struct {
	// +required
	Name string `json:"name"`
	// +required
	Value string `json:"value"`
	// +optional
	ContainerName string `json:"containerName,omitempty"`
}

// SandboxClaimSpec is what is claimed.
type SandboxClaimSpec struct {
	// +required
	WarmPoolRef SandboxWarmPoolRef `json:"warmPoolRef"`
	// +optional
	Lifecycle *Lifecycle `json:"lifecycle,omitempty"`
	// +optional
	AdditionalPodMetadata agents.PodMetadata `json:"additionalPodMetadata,omitzero"`
	// +kubebuilder:validation:Enum=on-completion;"true";"false"
	// +optional
	SafeToEvict *string `json:"safeToEvict,omitempty"`
	// A claim with variables gets a Sandbox of its own, and none of the pool.
	// +listType=atomic
	// +optional
	Env []EnvVar `json:"env,omitempty"`
}

// ClaimedSandbox is the Sandbox of a claim.
type ClaimedSandbox struct {
	// +optional
	Name string `json:"name,omitempty"`
	// +optional
	PodIPs []string `json:"podIPs,omitempty"`
}

// SandboxClaimStatus is what a claim has got.
type SandboxClaimStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// +optional
	Sandbox ClaimedSandbox `json:"sandbox,omitzero"`
}

// SandboxClaim takes a Sandbox out of a pool, or makes one if none is ready.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=sandboxclaim
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Sandbox",type="string",JSONPath=".status.sandbox.name"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type SandboxClaim struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// +required
	Spec SandboxClaimSpec `json:"spec"`
	// +optional
	Status SandboxClaimStatus `json:"status,omitzero"`
}

// SandboxClaimList is a list of SandboxClaims.
// +kubebuilder:object:root=true
type SandboxClaimList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SandboxClaim `json:"items"`
}
