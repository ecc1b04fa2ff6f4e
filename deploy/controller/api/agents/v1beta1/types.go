package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The types of conditions of a Sandbox.
const (
	// ConditionReady says whether the sandbox runs, and its command with it.
	ConditionReady = "Ready"
	// ConditionSuspended says whether the sandbox is suspended.
	ConditionSuspended = "Suspended"
	// ConditionFinished says that the sandbox has ended, and never runs again.
	ConditionFinished = "Finished"
)

// The reasons of conditions that agent-sandbox has too.
const (
	ReasonReady     = "DependenciesReady"
	ReasonNotReady  = "DependenciesNotReady"
	ReasonSuspended = "SandboxSuspended"
	ReasonExpired   = "SandboxExpired"
	ReasonSucceeded = "PodSucceeded"
	ReasonFailed    = "PodFailed"
)

// Labels and annotations of agent-sandbox.
const (
	// LaunchTypeLabel says whether a Sandbox was made for its claim ("cold") or comes
	// from a pool ("warm").
	LaunchTypeLabel = "agents.x-k8s.io/launch-type"
	LaunchCold      = "cold"
	LaunchWarm      = "warm"
	// WarmPoolLabel has the UID of the pool that a Sandbox waits in.
	WarmPoolLabel = "agents.x-k8s.io/warm-pool-sandbox"
	// TemplateHashLabel tells which state of a template a Sandbox was made from.
	TemplateHashLabel = "agents.x-k8s.io/sandbox-pod-template-hash"
	// TemplateRefAnnotation has the name of that template.
	TemplateRefAnnotation = "agents.x-k8s.io/sandbox-template-ref"
)

// PodMetadata are labels and annotations of a Pod.
type PodMetadata struct {
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// EmbeddedObjectMetadata are the name, labels and annotations of an object in another.
type EmbeddedObjectMetadata struct {
	// +optional
	Name string `json:"name,omitempty"`
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// PodTemplate describes what runs in a sandbox as a Pod would be described.
type PodTemplate struct {
	// +required
	Spec corev1.PodSpec `json:"spec"`
	// +optional
	ObjectMeta PodMetadata `json:"metadata,omitzero"`
}

// PersistentVolumeClaimTemplate describes a volume of a sandbox.
type PersistentVolumeClaimTemplate struct {
	// +optional
	EmbeddedObjectMetadata `json:"metadata,omitzero"`
	// +required
	Spec corev1.PersistentVolumeClaimSpec `json:"spec"`
}

// OperatingMode is "Running" or "Suspended".
type OperatingMode string

// The operating modes. Suspended is a pause, which keeps memory.
const (
	Running   OperatingMode = "Running"
	Suspended OperatingMode = "Suspended"
)

// SandboxBlueprint is what Sandbox and SandboxTemplate have in common.
type SandboxBlueprint struct {
	// +required
	PodTemplate PodTemplate `json:"podTemplate"`
	// +optional
	// +listType=atomic
	VolumeClaimTemplates []PersistentVolumeClaimTemplate `json:"volumeClaimTemplates,omitempty"`
	// +optional
	Service *bool `json:"service,omitempty"`
}

// ShutdownPolicy says what becomes of the object of a sandbox that has expired.
// +kubebuilder:validation:Enum=Delete;Retain
type ShutdownPolicy string

// The shutdown policies. The sandbox itself ends in any case.
const (
	ShutdownDelete ShutdownPolicy = "Delete"
	ShutdownRetain ShutdownPolicy = "Retain"
)

// Lifecycle says when a sandbox expires.
type Lifecycle struct {
	// +kubebuilder:validation:Format="date-time"
	// +optional
	ShutdownTime *metav1.Time `json:"shutdownTime,omitempty"`
	// +kubebuilder:default=Retain
	// +optional
	ShutdownPolicy *ShutdownPolicy `json:"shutdownPolicy,omitempty"`
}

// SandboxSpec is what a sandbox should be.
type SandboxSpec struct {
	SandboxBlueprint `json:",inline"`
	Lifecycle        `json:",inline"`
	// +kubebuilder:default=Running
	// +kubebuilder:validation:Enum=Running;Suspended
	// +optional
	OperatingMode OperatingMode `json:"operatingMode,omitempty"`
}

// SandboxStatus is what a sandbox is. Service, ServiceFQDN, LabelSelector, PodIPs and
// NodeName stay empty, because a sandbox of Cove is no Pod.
type SandboxStatus struct {
	// +optional
	ServiceFQDN string `json:"serviceFQDN,omitempty"`
	// +optional
	Service string `json:"service,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// +optional
	LabelSelector string `json:"selector,omitempty"`
	// +optional
	PodIPs []string `json:"podIPs,omitempty"`
	// +optional
	NodeName string `json:"nodeName,omitempty"`
}

// Sandbox is a sandbox of Cove.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=sandbox
// +kubebuilder:storageversion
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Reason",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].reason"
// +kubebuilder:printcolumn:name="Cove",type="string",JSONPath=".metadata.annotations.cove\\.sh/sandbox"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type Sandbox struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// +required
	Spec SandboxSpec `json:"spec"`
	// +optional
	Status SandboxStatus `json:"status,omitzero"`
}

// SandboxList is a list of Sandboxes.
// +kubebuilder:object:root=true
type SandboxList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Sandbox `json:"items"`
}
