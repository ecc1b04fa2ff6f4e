// Package controllers makes sandboxes of Cove for the objects of agents.x-k8s.io and
// extensions.agents.x-k8s.io.
//
// A controller can be killed at any moment, and the next one continues. Nothing that it
// does may happen twice, so each step can be found again: the sandbox of an object by the
// object's UID in its name and metadata, its command by the tag of the job, the Sandbox of
// a claim by the claim's UID in a label. What a Sandbox is made from is recorded in an
// annotation before it is made.
package controllers

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"

	agents "github.com/cove-sh/cove/deploy/controller/api/agents/v1beta1"
)

const (
	// SandboxAnnotation has the id in Cove of the sandbox of an object.
	SandboxAnnotation = "cove.sh/sandbox"
	// PreviewsAnnotation has the addresses of its ports, as JSON by port.
	PreviewsAnnotation = "cove.sh/previews"
	// recordAnnotation has the record.
	recordAnnotation = "cove.sh/made-from"
	// finalizer keeps an object until its sandbox has ended.
	finalizer = "cove.sh/sandbox"

	// ConditionIgnored lists fields that have no effect in Cove.
	ConditionIgnored = "cove.sh/Ignored"
)

// The reasons of conditions that only Cove has.
const (
	reasonUnsupported = "Unsupported"     // the object asks for what Cove cannot do
	reasonRefused     = "Refused"         // Cove has refused to make the sandbox
	reasonUnavailable = "CoveUnavailable" // Cove does not answer, or not now
	reasonPaused      = "MemoryKept"
	reasonNotStarted  = "NotStarted"
	reasonNotPaused   = "NotPaused"
	reasonRunning     = "SandboxRunning"
	reasonNoEffect    = "NoEffect"
)

// record is what the sandbox of an object is made from. It is written before the sandbox
// is made, and stays, whatever becomes of the object.
type record struct {
	// Spec is a hash of the blueprint.
	Spec     string               `json:"spec"`
	Image    string               `json:"image,omitempty"`
	Template string               `json:"template"`
	Command  []string             `json:"command,omitempty"`
	Restart  corev1.RestartPolicy `json:"restart,omitempty"`
	Ports    []int                `json:"ports,omitempty"`
	Dirs     []string             `json:"dirs,omitempty"`
	Ignored  []string             `json:"ignored,omitempty"`
}

// recordOf returns the record of an object, or nil.
func recordOf(sb *agents.Sandbox) *record {
	var rec record
	if json.Unmarshal([]byte(sb.Annotations[recordAnnotation]), &rec) != nil || rec.Template == "" {
		return nil
	}
	return &rec
}
