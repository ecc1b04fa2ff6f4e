import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { useLocation } from "wouter-preact";
import { enc, type Sandbox, send } from "../api/client";
import { calls } from "../lib/calls";
import { label } from "../lib/text";
import { living } from "../state/live";
import { attempt } from "../ui/do";
import { Button, Empty, Name, StateBadge } from "../ui/kit";
import "../styles/compare.css";

/** How often the picture of a screen is taken that is in view. */
const EVERY_MS = 4000;

export function ComputersPage() {
  const [, go] = useLocation();
  const busy = useSignal(false);
  const computers = useComputed(() =>
    living.value.filter((s) => s.desktop).sort((a, b) => a.created_at.localeCompare(b.created_at)),
  );
  const make = async () => {
    busy.value = true;
    const made = await attempt(calls.create({ template: "desktop" }), "The computer runs");
    busy.value = false;
    if (made) go(`/s/${made.id}/screen`);
  };
  return (
    <div class="page">
      <header class="bar">
        <h1>Computers</h1>
        {computers.value.length > 0 && <span class="count">{computers.value.length}</span>}
        <span class="grow" />
        <Button kind="primary" icon="plus" scope="sandboxes:write" busy={busy.value} onClick={make}>
          New computer
        </Button>
      </header>
      {computers.value.length === 0 ? (
        <Empty
          icon="screen"
          title="No computer runs"
          action={
            <Button icon="layers" onClick={() => go("/templates")}>
              Templates
            </Button>
          }
        >
          A computer is a sandbox with a screen: the templates desktop and browser have one. An agent uses it by pictures, pointer
          and keys; you can watch, or take over.
        </Empty>
      ) : (
        <div class="screens">
          {computers.value.map((s) => (
            <Screen key={s.id} of={s} open={() => go(`/s/${s.id}/screen`)} />
          ))}
        </div>
      )}
    </div>
  );
}

function Screen({ of: s, open }: { of: Sandbox; open: () => void }) {
  const picture = useSignal("");
  const error = useSignal("");
  const box = useRef<HTMLButtonElement>(null);
  useEffect(() => {
    if (s.state !== "running") return;
    let seen = false;
    let left = false;
    let timer = 0;
    let url = "";
    const watch = new IntersectionObserver(([e]) => {
      seen = e?.isIntersecting ?? false;
    });
    watch.observe(box.current!);
    const take = async () => {
      if (seen && !document.hidden) {
        try {
          const blob = await (
            await send("GET", `/v1/sandboxes/${enc(s.id)}/computer/screenshot?width=480&format=jpeg&quality=70`, undefined, {
              headers: { Accept: "image/jpeg" },
            })
          ).blob();
          if (left) return;
          const next = URL.createObjectURL(new Blob([blob], { type: "image/jpeg" }));
          picture.value = next;
          if (url) URL.revokeObjectURL(url);
          url = next;
          error.value = "";
        } catch (err) {
          error.value = (err as Error).message;
        }
      }
      if (!left) timer = window.setTimeout(take, picture.value ? EVERY_MS : 1000);
    };
    timer = window.setTimeout(take, 50);
    return () => {
      left = true;
      clearTimeout(timer);
      watch.disconnect();
      if (url) URL.revokeObjectURL(url);
    };
  }, [s.id, s.state]);
  const name = label(s.name || s.id);
  return (
    <section class="card">
      <button type="button" class="thumb" ref={box} onClick={open} aria-label={`Open the screen of ${name}`}>
        {picture.value ? (
          <img src={picture.value} alt="" />
        ) : (
          <span class="thumb-none small">{s.state === "paused" ? "paused" : error.value ? label(error.value, 120) : "…"}</span>
        )}
      </button>
      <header style={{ border: 0 }}>
        <h2 class="grow cut">
          <Name of={s} />
        </h2>
        <StateBadge state={s.state} />
        <Button small icon="open" onClick={open}>
          Watch
        </Button>
      </header>
    </section>
  );
}
