// Taking what a fork has done into its parent.
import { useSignal } from "@preact/signals";
import { useLocation } from "wouter-preact";
import type { MergeResult, Sandbox } from "../api/client";
import { calls } from "../lib/calls";
import { plural } from "../lib/format";
import { label } from "../lib/text";
import { CallDialog } from "../ui/dialog";
import { toast } from "../ui/do";
import { Check, Field, Select } from "../ui/fields";
import { Button } from "../ui/kit";

export function Merge({ parent, winner }: { parent: Sandbox; winner: Sandbox }) {
  const [, go] = useLocation();
  const open = useSignal(false);
  const kind = useSignal(winner.forked_from === parent.id ? "whole" : "files");
  const policy = useSignal("");
  const kill = useSignal(false);
  const result = useSignal<MergeResult | undefined>(undefined);
  const call = calls.merge(parent.id, {
    winner: winner.id,
    kind: kind.value,
    ...(kind.value === "files" ? { policy: policy.value || undefined, kill_winner: kill.value || undefined } : {}),
  });
  const close = () => {
    open.value = false;
    result.value = undefined;
  };
  const done = (got: MergeResult) => {
    result.value = got;
    if (!got.merged) return false;
    toast("ok", `${label(winner.name || winner.id)} is merged into ${label(parent.name || parent.id)}`, call);
    go(`/s/${parent.id}`);
  };
  const conflicts = result.value?.conflicts ?? [];
  return (
    <>
      <Button
        kind="primary"
        icon="merge"
        scope="sandboxes:write"
        onClick={() => {
          open.value = true;
        }}
      >
        Merge…
      </Button>
      {open.value && (
        <CallDialog
          title={`Merge ${label(winner.name || winner.id, 40)} into ${label(parent.name || parent.id, 40)}`}
          action="Merge"
          icon="merge"
          wide={conflicts.length > 0}
          call={call}
          close={close}
          done={done}
        >
          {conflicts.length > 0 && (
            <div class="stack">
              <p class="note amber">
                Nothing was merged: both sides changed {plural(conflicts.length, "path")}. Say whose version is kept.
              </p>
              <div class="scroll-x conflicts">
                <table class="data">
                  <thead>
                    <tr>
                      <th>Path</th>
                      <th>{label(parent.name || "parent", 24)}</th>
                      <th>{label(winner.name || "winner", 24)}</th>
                    </tr>
                  </thead>
                  <tbody>
                    {conflicts.map((c) => (
                      <tr key={c.path}>
                        <td class="mono cut" title={label(c.path)}>
                          {label(c.path)}
                        </td>
                        <td class="muted">{label(c.ours)}</td>
                        <td class="muted">{label(c.theirs)}</td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              </div>
            </div>
          )}
          <label class="check">
            <input
              type="radio"
              name="kind"
              checked={kind.value === "whole"}
              onChange={() => {
                kind.value = "whole";
                result.value = undefined;
              }}
            />
            <span>
              <b>Whole</b> <span class="muted">The parent becomes what the winner is: memory, processes and files.</span>
            </span>
          </label>
          <label class="check">
            <input
              type="radio"
              name="kind"
              checked={kind.value === "files"}
              onChange={() => {
                kind.value = "files";
              }}
            />
            <span>
              <b>Files</b> <span class="muted">The parent runs on, and gets what the winner changed since the fork.</span>
            </span>
          </label>
          {kind.value === "files" && (
            <>
              <Field label="Where both changed the same path">
                <Select value={policy}>
                  <option value="">change nothing, and list the conflicts</option>
                  <option value="ours">keep the version of {label(parent.name || "the parent", 30)}</option>
                  <option value="theirs">take the version of {label(winner.name || "the winner", 30)}</option>
                </Select>
              </Field>
              <Check value={kill}>End {label(winner.name || winner.id, 40)} afterwards</Check>
            </>
          )}
        </CallDialog>
      )}
    </>
  );
}
