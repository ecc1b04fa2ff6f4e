import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { api, enc, type NetworkEvent, type NetworkPolicy, type Sandbox, stream, want } from "../../api/client";
import { may } from "../../api/session";
import { again } from "../../lib/again";
import { calls } from "../../lib/calls";
import { bytes, clock, span } from "../../lib/format";
import { allowing, type NetworkRule, without } from "../../lib/policy";
import { whileShown } from "../../lib/shown";
import { label } from "../../lib/text";
import { note, sandboxes } from "../../state/live";
import { isEnded } from "../../state/world";
import { CopyAs } from "../../ui/dialog";
import { attempt, toast } from "../../ui/do";
import { Field, Input, Select } from "../../ui/fields";
import { Button, Empty, Failure, Loading, Rows } from "../../ui/kit";

const MOST = 1000;
/** How soon a stream that is refused says so. */
const QUIET_MS = 1000;
const PAUSES = { first: 500, longest: 10_000 };
const PRESETS: [string, string][] = [
  ["open", "the public Internet"],
  ["packages", "package registries and code hosts"],
  ["none", "nothing, names neither"],
];

/** What is to be changed in the policy that holds. */
type Edit = (policy: NetworkPolicy) => NetworkPolicy;

export function NetworkTab({ of: s }: { of: Sandbox }) {
  const events = useSignal<NetworkEvent[] | undefined>(undefined);
  const policy = useSignal<NetworkPolicy | undefined>(s.network);
  const error = useSignal("");
  const live = useSignal(false);
  const only = useSignal("all");
  const search = useSignal("");
  const ended = isEnded(s);

  useEffect(() => {
    const stop = new AbortController();
    const path = { sandbox: s.id };
    const list = () =>
      want(api.GET("/v1/sandboxes/{sandbox}/network/log", { params: { path, query: { limit: 500 } }, signal: stop.signal })).then(
        (l) => {
          events.value = merged(l.items ?? [], events.value ?? []);
          error.value = "";
        },
        (err: Error) => {
          // What is shown stays so, and is made whole by the next list.
          if (!stop.signal.aborted && !events.value) error.value = err.message;
        },
      );
    /** connect follows the log until the connection ends. */
    const connect = async (shown: AbortSignal, heard: () => void) => {
      // The stream says nothing, not even that it has begun, until there is an event:
      // one that is not refused for a while is taken to be open. What happened before
      // that is listed.
      const open = () => {
        live.value = true;
        void list();
      };
      const quiet = setTimeout(open, QUIET_MS);
      try {
        await stream<{ event?: NetworkEvent } & NetworkEvent>(
          "GET",
          `/v1/sandboxes/${enc(s.id)}/network/log/follow`,
          undefined,
          (line) => {
            clearTimeout(quiet);
            if (!live.value) open();
            heard();
            const e = line.event ?? line;
            if (e.id) events.value = merged([e], events.value ?? []);
          },
          shown,
        );
      } finally {
        clearTimeout(quiet);
        if (!stop.signal.aborted) live.value = false;
      }
    };
    live.value = false;
    void list();
    if (!ended) {
      want(api.GET("/v1/sandboxes/{sandbox}/network", { params: { path } })).then(
        (p) => {
          policy.value = p;
        },
        () => {},
      );
      void again(stop.signal, PAUSES, (works) => whileShown(stop.signal, (shown) => connect(shown, works)));
    }
    return () => stop.abort();
  }, [s.id, ended]);

  const shown = useComputed(() => {
    const q = search.value.toLowerCase();
    return (events.value ?? []).filter(
      (e) =>
        (only.value === "all" || e.verdict === only.value) &&
        (!q ||
          `${e.host ?? ""} ${e.address ?? ""} ${e.question ?? ""} ${e.reason ?? ""} ${e.path ?? ""}`.toLowerCase().includes(q)),
    );
  });
  /** change sets a policy, and reports whether it holds now. */
  const change = async (edit: Edit, said: string): Promise<boolean> => {
    // What is shown may be old by now: others set policies too.
    const now = await want(api.GET("/v1/sandboxes/{sandbox}/network", { params: { path: { sandbox: s.id } } })).catch(
      (err: Error) => {
        toast("error", err.message);
      },
    );
    const got = now && (await attempt(calls.setNetwork(s.id, edit(now)), said));
    if (!got) return false;
    policy.value = got;
    note({ ...(sandboxes.value.get(s.id) ?? s), network: got });
    return true;
  };
  // One at a time, so that of two quick clicks the second does not undo the first.
  const last = useRef<Promise<unknown>>(Promise.resolve());
  const set = (edit: Edit, said: string): Promise<boolean> => {
    const done = last.current.then(() => change(edit, said));
    last.current = done;
    return done;
  };
  const allow = (e: NetworkEvent) => {
    const name = e.host || e.address;
    if (name) void set((p) => allowing(p, name), `${label(name)} may be reached`);
  };
  return (
    <div class="network">
      <section class="netlog">
        <div class="files-tools">
          <div class="seg">
            {["all", "allowed", "blocked", "failed"].map((v) => (
              <Button
                key={v}
                small
                aria-pressed={only.value === v}
                onClick={() => {
                  only.value = v;
                }}
              >
                {v}
              </Button>
            ))}
          </div>
          <Input type="search" aria-label="Search the log" placeholder="Search" value={search} />
          {!ended && (
            <span class="status small">
              <i class={`dot ${live.value ? "green" : "amber"}`} />
              {live.value ? "Live" : "Connecting"}
            </span>
          )}
        </div>
        {error.value ? (
          <Failure error={error.value} />
        ) : !events.value ? (
          <Loading />
        ) : shown.value.length === 0 ? (
          <Empty icon="globe" title={events.value.length ? "Nothing matches" : "It has not tried to reach anything"}>
            Each name that it asks for and each connection that it makes is recorded here as it happens.
          </Empty>
        ) : (
          <Rows
            role="list"
            aria-label="Network log"
            class="net-rows"
            items={shown.value}
            height={34}
            render={(e) => (
              <div
                class="net-row"
                role="listitem"
                key={e.id}
                title={label(`${e.reason ?? ""} ${e.rule ? `[${e.rule}]` : ""}`, 500)}
              >
                <span class="muted small">{clock(e.time)}</span>
                <span class={`badge ${e.verdict === "blocked" ? "red" : e.verdict === "allowed" ? "green" : "amber"}`}>
                  {label(e.verdict)}
                </span>
                <span class="muted small">{label(e.kind === "dns" ? `dns ${e.question ?? ""}` : e.protocol, 20)}</span>
                <bdi class="cut mono">
                  {e.method ? `${label(e.method, 10)} ` : ""}
                  {label(e.host || e.address)}
                  {e.port ? `:${e.port}` : ""}
                  {label(e.path)}
                </bdi>
                <span class="muted small cut net-why">
                  {e.verdict === "blocked"
                    ? label(e.reason)
                    : e.status
                      ? `${e.status}`
                      : e.bytes_in || e.bytes_out
                        ? `↑ ${bytes(e.bytes_out)} ↓ ${bytes(e.bytes_in)}`
                        : e.open
                          ? "open"
                          : e.duration_ms !== undefined
                            ? span(e.duration_ms)
                            : ""}
                </span>
                {e.verdict === "blocked" && (e.host || e.address) && !ended ? (
                  <Button small scope="sandboxes:write" onClick={() => allow(e)}>
                    Allow this name
                  </Button>
                ) : (
                  <span />
                )}
              </div>
            )}
          />
        )}
      </section>
      <aside class="policy" aria-label="Policy">
        {policy.value ? <Policy of={s} policy={policy.value} set={set} ended={ended} /> : <Loading rows={4} />}
      </aside>
    </div>
  );
}

/** merged puts events together, the newest first; a connection's end replaces its beginning. */
function merged(more: NetworkEvent[], have: NetworkEvent[]): NetworkEvent[] {
  const map = new Map<string, NetworkEvent>();
  for (const e of [...have, ...more].sort((a, b) => a.id - b.id)) map.set(e.connection ? `c${e.connection}` : `e${e.id}`, e);
  return [...map.values()].sort((a, b) => b.id - a.id).slice(0, MOST);
}

function Policy({
  of: s,
  policy,
  set,
  ended,
}: {
  of: Sandbox;
  policy: NetworkPolicy;
  set: (edit: Edit, said: string) => Promise<boolean>;
  ended: boolean;
}) {
  const text = useSignal<string | undefined>(undefined);
  const adding = useSignal("");
  const action = useSignal("allow");
  const save = async () => {
    try {
      const whole = JSON.parse(text.value!) as NetworkPolicy;
      // What the server refuses can be mended.
      if (await set(() => whole, "The policy holds now")) text.value = undefined;
    } catch (err) {
      toast("error", `That is no JSON: ${(err as Error).message}`);
    }
  };
  const off = ended || !may("sandboxes:write");
  const rules = policy.rules ?? [];
  return (
    <>
      <div class="row">
        <h2 class="grow">Policy</h2>
        <CopyAs call={calls.setNetwork(s.id, policy)} small />
      </div>
      {text.value !== undefined ? (
        <>
          <textarea
            class="input"
            rows={18}
            aria-label="Policy as JSON"
            spellcheck={false}
            value={text.value}
            onInput={(e) => {
              text.value = e.currentTarget.value;
            }}
          />
          <div class="row">
            <Button kind="primary" scope="sandboxes:write" onClick={save}>
              Set
            </Button>
            <Button
              onClick={() => {
                text.value = undefined;
              }}
            >
              Cancel
            </Button>
          </div>
        </>
      ) : (
        <>
          <Field label="Preset: what holds where no rule decides">
            <select
              class="select"
              disabled={off}
              value={policy.preset || "open"}
              onChange={(e) => {
                const preset = e.currentTarget.value;
                void set((p) => ({ ...p, preset }), "The policy holds now");
              }}
            >
              {PRESETS.map(([p, what]) => (
                <option key={p} value={p}>
                  {p}: {what}
                </option>
              ))}
            </select>
          </Field>
          {!!policy.allow_out?.length && (
            <Names
              title="Allowed, whatever else is said"
              list={policy.allow_out}
              off={off}
              remove={(n) => void set((p) => ({ ...p, allow_out: p.allow_out?.filter((x) => x !== n) }), "The policy holds now")}
            />
          )}
          {!!policy.deny_out?.length && (
            <Names
              title="Denied"
              list={policy.deny_out}
              off={off}
              remove={(n) => void set((p) => ({ ...p, deny_out: p.deny_out?.filter((x) => x !== n) }), "The policy holds now")}
            />
          )}
          {!!policy.headers?.length && (
            <Names
              title="Hosts whose HTTPS requests get headers"
              list={policy.headers.map((h) => h.to ?? "")}
              off={off}
              remove={(n) => void set((p) => ({ ...p, headers: p.headers?.filter((x) => x.to !== n) }), "The policy holds now")}
            />
          )}
          <div class="stack tight-stack">
            <h3>Rules, the first that matches decides</h3>
            {rules.length === 0 && <p class="muted small">There are none.</p>}
            {rules.map((r, i) => (
              <div class="rule" key={i}>
                <span class={`badge ${r.action === "allow" ? "green" : r.action === "ask" ? "amber" : "red"}`}>
                  {label(r.action)}
                </span>
                <bdi class="mono cut grow" title={label(r.to)}>
                  {label(r.to)}
                </bdi>
                <span class="muted small">{[r.protocol, ...(r.ports ?? [])].filter(Boolean).join(" ")}</span>
                <Button
                  small
                  kind="ghost"
                  icon="close"
                  aria-label={`Remove the rule for ${label(r.to)}`}
                  scope="sandboxes:write"
                  disabled={ended}
                  onClick={() => void set((p) => without(p, r), "The rule is gone")}
                />
              </div>
            ))}
            <form
              class="row nowrap"
              onSubmit={(e) => {
                e.preventDefault();
                const to = adding.value.trim();
                if (!to) return;
                const rule = { action: action.value, to } as NetworkRule;
                void set((p) => ({ ...p, rules: [rule, ...(p.rules ?? [])] }), "The rule holds now");
                adding.value = "";
              }}
            >
              <Select class="narrow" aria-label="Action" disabled={off} value={action}>
                <option>allow</option>
                <option>deny</option>
                <option>ask</option>
              </Select>
              <Input class="mono" aria-label="What the rule is for" placeholder="api.example.com" disabled={off} value={adding} />
              <Button type="submit" icon="plus" scope="sandboxes:write" disabled={ended} aria-label="Add the rule" />
            </form>
          </div>
          <Button
            icon="code"
            scope="sandboxes:write"
            disabled={ended}
            onClick={() => {
              text.value = JSON.stringify(policy, null, 2);
            }}
          >
            Edit as JSON
          </Button>
        </>
      )}
    </>
  );
}

function Names({
  title,
  list,
  remove,
  off,
}: {
  title: string;
  list: readonly string[];
  remove: (n: string) => void;
  off: boolean;
}) {
  return (
    <div class="stack tight-stack">
      <h3>{title}</h3>
      {list.map((n) => (
        <div class="rule" key={n}>
          <bdi class="mono cut grow">{label(n)}</bdi>
          <Button small kind="ghost" icon="close" aria-label={`Remove ${label(n)}`} disabled={off} onClick={() => remove(n)} />
        </div>
      ))}
    </div>
  );
}
