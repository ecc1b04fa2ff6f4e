package controllers

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	agents "github.com/cove-sh/cove/deploy/controller/api/agents/v1beta1"
	"github.com/cove-sh/cove/sandbox"
)

// operate pauses or resumes a sandbox as its object says, and starts its command. It
// returns when there is something to look at again, or 0.
func (r *Sandboxes) operate(ctx context.Context, sb *agents.Sandbox, found *sandbox.Sandbox, rec *record) (time.Duration, error) {
	var err error
	switch suspend := sb.Spec.OperatingMode == agents.Suspended; {
	case found.State == sandbox.StateCreating || found.State == sandbox.StateStopping:
		set(sb, agents.ConditionReady, false, agents.ReasonNotReady, "the sandbox is "+string(found.State))
		return soon, nil
	case suspend && found.State == sandbox.StateRunning:
		if found, err = r.Cove.Pause(ctx, found.ID); err != nil {
			set(sb, agents.ConditionSuspended, false, reasonNotPaused, sandbox.MessageOf(err))
			return 0, err
		}
	case !suspend && found.State == sandbox.StatePaused:
		if found, err = r.Cove.Resume(ctx, found.ID, sandbox.ResumeRequest{}); err != nil {
			return 0, err
		}
	}
	if sb.Annotations[SandboxAnnotation] == "" && found.State == sandbox.StateRunning {
		if err := r.begin(ctx, sb, found, rec); err != nil {
			return 0, err
		}
	}
	setIgnored(sb, rec)
	if found.State == sandbox.StatePaused {
		set(sb, agents.ConditionReady, false, agents.ReasonSuspended, "the sandbox is paused")
		set(sb, agents.ConditionSuspended, true, reasonPaused, "memory and processes are kept, and continue when operatingMode is Running")
		return 0, nil
	}
	set(sb, agents.ConditionSuspended, false, reasonRunning, "operatingMode is Running")
	is, err := command(ctx, r.Cove, found.ID, rec, r.Now())
	switch {
	case err != nil:
		return 0, err
	case is.ended:
		finish(sb, is.code == 0, is.what)
	case !is.ok:
		set(sb, agents.ConditionReady, false, agents.ReasonNotReady, is.what)
		return max(is.wait, soon), nil
	default:
		set(sb, agents.ConditionReady, true, agents.ReasonReady, "the sandbox runs")
	}
	return 0, nil
}

// begin prepares a sandbox that is new, and records its id.
func (r *Sandboxes) begin(ctx context.Context, sb *agents.Sandbox, found *sandbox.Sandbox, rec *record) error {
	previews, notes, err := prepare(ctx, r.Cove, found.ID, rec)
	if err != nil {
		return err
	}
	rec.Ignored = append(rec.Ignored, notes...)
	record, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	urls, err := json.Marshal(previews)
	if err != nil {
		return err
	}
	return r.annotate(ctx, sb, map[string]string{SandboxAnnotation: found.ID, PreviewsAnnotation: string(urls), recordAnnotation: string(record)})
}

// setIgnored lists what has no effect.
func setIgnored(sb *agents.Sandbox, rec *record) {
	all := slices.Clone(rec.Ignored)
	if rec.Spec != hashOf(sb.Spec.SandboxBlueprint) {
		all = append(all, "spec was changed after the sandbox was made; delete the object and make it again to use the change")
	}
	if len(all) == 0 {
		meta.RemoveStatusCondition(&sb.Status.Conditions, ConditionIgnored)
		return
	}
	const most = 32 << 10 // bytes of a message
	message := strings.Join(all, "; ")
	set(sb, ConditionIgnored, true, reasonNoEffect, message[:min(len(message), most)])
}

// hashOf names the content of an object.
func hashOf(object any) string {
	data, err := json.Marshal(object)
	if err != nil {
		panic(err) // of types that the API has decoded
	}
	return fmt.Sprintf("%x", sha256.Sum256(data))[:16]
}
