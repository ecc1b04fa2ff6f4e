// What a sandbox has changed.
import type { Sandbox } from "../../api/client";
import { label } from "../../lib/text";
import { kept, sandboxes } from "../../state/live";
import { stateName, stepsOf, useSteps } from "../../state/steps";
import { Comparison, useDiff } from "../../ui/changes";
import { CopyAs } from "../../ui/dialog";
import { Button } from "../../ui/kit";

/** Since shows what changed since the template, the parent, or a snapshot. */
export function Since({
  of: s,
  against,
  pick,
  close,
}: {
  of: Sandbox;
  against: string;
  pick: (x: string) => void;
  close: () => void;
}) {
  const { call, load } = useDiff(s.id, against);
  useSteps(s);
  const steps = stepsOf(s.id);
  const choices = kept.value.filter((x) => x.sandbox_id === s.id || x.sandbox_id === s.forked_from);
  const parent = s.forked_from ? sandboxes.value.get(s.forked_from) : undefined;
  return (
    <div class="since">
      <div class="files-tools">
        <Button kind="ghost" small icon="folder" onClick={close}>
          All files
        </Button>
        <label class="row nowrap">
          <span class="soft">Changed since</span>
          <select class="select narrow" value={against} onChange={(e) => pick(e.currentTarget.value)}>
            <option value="">its template, {label(s.template)}</option>
            {parent && !parent.ended_at && <option value={parent.id}>its parent, {label(parent.name || parent.id)}</option>}
            {choices.map((x) => (
              <option key={x.id} value={x.id}>
                snapshot {label(x.name || x.label || x.id, 50)}
              </option>
            ))}
            {steps.map((x) => (
              <option key={x.id} value={x.id}>
                {stateName(x, steps)}, {label(x.label, 40)}
              </option>
            ))}
          </select>
        </label>
        <Button kind="ghost" small icon="back" aria-label="Compare again" title="Compare again" onClick={load.again} />
        <span class="grow" />
        <CopyAs call={call} small />
      </div>
      <Comparison load={load} readable={s.id} />
    </div>
  );
}
