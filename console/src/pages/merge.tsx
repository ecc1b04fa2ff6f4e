// Taking what a fork has done into its parent.
import { useSignal } from "@preact/signals";
import { useLocation } from "wouter-preact";
import type { MergeResult, Sandbox } from "../api/client";
import { calls } from "../lib/calls";
import { byName, plural } from "../lib/format";
import { label } from "../lib/text";
import { CallDialog } from "../ui/dialog";
import { toast } from "../ui/do";
import { Check, Field, Select } from "../ui/fields";
import { Button } from "../ui/kit";
import { Conflicts, type Side } from "./conflicts";

export function Merge({ parent, winner }: { parent: Sandbox; winner: Sandbox }) {
  const [, go] = useLocation();
  const open = useSignal(false);
  const kind = useSignal(winner.forked_from === parent.id ? "whole" : "files");
  const policy = useSignal("");
  const kill = useSignal(false);
  const chosen = useSignal<Readonly<Record<string, Side>>>({});
  const result = useSignal<MergeResult | undefined>(undefined);
  const call = calls.merge(parent.id, {
    winner: winner.id,
    kind: kind.value,
    ...(kind.value === "files"
      ? {
          policy: policy.value || undefined,
          resolve: Object.keys(chosen.value).length ? chosen.value : undefined,
          kill_winner: kill.value || undefined,
        }
      : {}),
  });
  const anew = () => {
    result.value = undefined;
    chosen.value = {};
  };
  const close = () => {
    open.value = false;
    anew();
  };
  const done = (got: MergeResult) => {
    if (!got.merged) {
      // What was chosen stays among what there is to choose: it may be changed.
      const known = (result.value?.conflicts ?? []).filter((c) => chosen.value[c.path]);
      const more = (got.conflicts ?? []).filter((c) => !chosen.value[c.path]);
      result.value = { ...got, conflicts: [...known, ...more].sort((a, b) => byName(a.path, b.path)) };
      return false;
    }
    toast("ok", `${label(winner.name || winner.id)} is merged into ${label(parent.name || parent.id)}`, call);
    go(`/s/${parent.id}`);
  };
  const conflicts = result.value?.conflicts ?? [];
  const left = policy.value ? 0 : conflicts.filter((c) => !chosen.value[c.path]).length;
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
          blocked={left ? `There is a version to choose for ${plural(left, "more path")}` : ""}
          call={call}
          close={close}
          done={done}
        >
          {conflicts.length > 0 && (
            <>
              <p class="note amber">
                Nothing was merged yet: both sides changed {plural(conflicts.length, "path")}. Choose whose version is kept.
              </p>
              <Conflicts of={conflicts} parent={parent} winner={winner} chosen={chosen} />
            </>
          )}
          <label class="check">
            <input
              type="radio"
              name="kind"
              checked={kind.value === "whole"}
              onChange={() => {
                kind.value = "whole";
                anew();
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
              <Field label={conflicts.length ? "Where nothing is chosen" : "Where both changed the same path"}>
                <Select value={policy}>
                  <option value="">change nothing, and let me choose path by path</option>
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
