// The live screen of a computer: VNC through the server's tunnel to a port of
// the sandbox, so that no other origin is asked.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { enc, type Sandbox, socketURL } from "../../api/client";
import { may } from "../../api/session";
import { calls } from "../../lib/calls";
import { label } from "../../lib/text";
import { CopyAs } from "../../ui/dialog";
import { perform, toast } from "../../ui/do";
import { Button, Failure } from "../../ui/kit";
import { FilmStrip } from "./film";

/** The first display's port: Xvnc listens on 5900 and the display's number, within the sandbox. */
function vncPort(s: Sandbox): number {
  return 5900 + (Number(/^:(\d+)/.exec(s.desktop?.display ?? "")?.[1]) || 1);
}

export function ScreenTab({ of: s }: { of: Sandbox }) {
  const box = useRef<HTMLDivElement>(null);
  const control = useSignal(false);
  const state = useSignal<"connecting" | "open" | "lost">("connecting");
  const error = useSignal("");
  const rfb = useRef<{ viewOnly: boolean; disconnect(): void; focus(): void; blur(): void }>();
  const attempts = useSignal(0);

  useEffect(() => {
    let left = false;
    let retry = 0;
    state.value = "connecting";
    import("@novnc/novnc").then(
      ({ default: RFB }) => {
        if (left || !box.current) return;
        error.value = "";
        const r = new RFB(box.current, socketURL(`/v1/sandboxes/${enc(s.id)}/ports/${vncPort(s)}`), { shared: true });
        r.viewOnly = !control.value;
        r.scaleViewport = true;
        r.background = "transparent";
        r.addEventListener("connect", () => {
          state.value = "open";
          box.current?.querySelector("canvas")?.classList.add("vnc");
        });
        r.addEventListener("disconnect", () => {
          if (left) return;
          state.value = "lost";
          retry = window.setTimeout(() => attempts.value++, 2000);
        });
        rfb.current = r;
      },
      () => {
        if (left) return;
        error.value = "The viewer could not be loaded. It is tried again.";
        retry = window.setTimeout(() => attempts.value++, 2000);
      },
    );
    return () => {
      left = true;
      clearTimeout(retry);
      rfb.current?.disconnect();
      rfb.current = undefined;
    };
  }, [s.id, attempts.value]);

  const share = async () => {
    try {
      const answer = await perform(calls.viewComputer(s.id, control.value));
      if (answer.url && /^https?:\/\//.test(answer.url)) window.open(answer.url, "_blank", "noopener,noreferrer");
    } catch (err) {
      toast("error", (err as Error).message);
    }
  };
  return (
    <div class="screen">
      <div class="files-tools">
        <span class="status small">
          <i class={`dot ${state.value === "open" ? "green" : "amber"}`} />
          {state.value === "open"
            ? control.value
              ? "You have control"
              : "Watching"
            : state.value === "lost"
              ? "Reconnecting"
              : "Connecting"}
        </span>
        <span class="muted small">
          {s.desktop?.width} × {s.desktop?.height}
        </span>
        <span class="grow" />
        <CopyAs small call={calls.viewComputer(s.id, control.value)} />
        <Button small icon="open" scope="computers:write" onClick={() => void share()}>
          Live view in a tab
        </Button>
        <Button
          small
          kind={control.value ? "primary" : "plain"}
          scope="computers:write"
          aria-pressed={control.value}
          onClick={() => {
            control.value = !control.value;
            if (rfb.current) {
              rfb.current.viewOnly = !control.value;
              if (control.value) rfb.current.focus();
              else rfb.current.blur();
            }
          }}
        >
          {control.value ? "Only watch" : "Take over"}
        </Button>
      </div>
      {error.value && <Failure error={error.value} />}
      {!may("sandboxes:write") && (
        <p class="note amber">
          {label("A live screen needs the scope sandboxes:write; the page Computers shows pictures of it.")}
        </p>
      )}
      <div class="screen-box" ref={box} data-test="screen" />
      <FilmStrip key={s.id} of={s} />
    </div>
  );
}
