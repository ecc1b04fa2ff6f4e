// The film strip of a computer: what calls did with it last, and its screen after each.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { enc, type Sandbox, send, stream } from "../../api/client";
import { type Action, Film, type Frame } from "../../lib/film";
import { clock } from "../../lib/format";
import { label } from "../../lib/text";
import { world } from "../../state/live";
import type { CoveEvent } from "../../state/world";
import { Dialog } from "../../ui/dialog";
import { Icon, type IconName } from "../../ui/icons";

/** How long the screen has to stand still for a picture, in milliseconds. */
const STILL_MS = 250;

const ICONS: Record<string, IconName> = { input: "screen", clipboard: "copy", window: "table", open: "globe" };

function actionOf(e: CoveEvent): Action[] {
  return e.computer?.action && e.id && e.at ? [{ ...e.computer, id: e.id, at: e.at, action: e.computer.action }] : [];
}

/** said is what was done in a frame, in a few words. */
function said(f: Frame): string {
  const words = f.actions.map((a) =>
    a.action === "input" ? a.detail || "input" : a.action === "clipboard" ? "clipboard" : `${a.action} ${a.detail ?? ""}`,
  );
  const text = words.slice(0, 3).join(", ");
  return label(words.length > 3 ? `${text} and ${words.length - 3} more` : text, 120);
}

export function FilmStrip({ of: s }: { of: Sandbox }) {
  const frames = useSignal<readonly Frame[]>([]);
  const large = useSignal<string | undefined>(undefined);
  const strip = useRef<HTMLOListElement>(null);
  const film = useRef<Film>();
  useEffect(() => {
    const path = `/v1/sandboxes/${enc(s.id)}/computer/screenshot?width=480&cursor=true&stable_ms=${STILL_MS}&format=jpeg&quality=70`;
    const stop = new AbortController();
    const made = new Film(
      {
        take: async () => {
          const response = await send("GET", path, undefined, { headers: { Accept: "image/jpeg" }, signal: stop.signal });
          return new Blob([await response.blob()], { type: "image/jpeg" });
        },
        keep: (picture) => URL.createObjectURL(picture),
        drop: (address) => URL.revokeObjectURL(address),
      },
      (now) => {
        frames.value = now;
      },
    );
    film.current = made;
    const before: Action[] = [];
    stream<CoveEvent>(
      "GET",
      `/v1/events?sandbox=${enc(s.id)}&kind=computer&after=oldest&once=true`,
      undefined,
      (line) => {
        before.push(...actionOf(line));
      },
      stop.signal,
    ).then(
      () => made.past(before),
      () => {
        // What was done before is not known then; what is done from now on is.
      },
    );
    return () => {
      stop.abort();
      film.current = undefined;
      made.end();
    };
  }, [s.id]);
  const heard = world.value.actions.get(s.id);
  const seen = useRef(heard?.at(-1)?.id);
  useEffect(() => {
    const all = heard ?? [];
    const known = all.findIndex((e) => e.id === seen.current);
    for (const a of all.slice(known + 1).flatMap(actionOf)) film.current?.add(a);
    seen.current = all.at(-1)?.id ?? seen.current;
  }, [heard]);
  const count = frames.value.length;
  useEffect(() => {
    if (strip.current) strip.current.scrollLeft = strip.current.scrollWidth;
  }, [count]);
  const shown = frames.value.find((f) => f.id === large.value);
  return (
    <section class="film" aria-label="Last actions">
      {count === 0 ? (
        <p class="muted small film-none">
          What calls do here is shown as a film: clicks, keys, windows and addresses, with the screen after each. What people do
          in the live view is not in it.
        </p>
      ) : (
        <ol ref={strip} tabIndex={0} aria-label="Last actions, the newest last">
          {frames.value.map((f) => {
            const last = f.actions.at(-1)!;
            const text = said(f);
            return (
              <li key={f.id}>
                <button
                  type="button"
                  class="frame"
                  disabled={!f.picture}
                  aria-label={`${text}, ${clock(last.at)}`}
                  title={f.picture ? text : `${text}. There is no picture: nobody watched then, or the next action came at once.`}
                  onClick={() => {
                    large.value = f.id;
                  }}
                >
                  <Picture of={f} screen={s.desktop} />
                </button>
                <div class="caption small" title={text}>
                  <Icon name={ICONS[last.action] ?? "screen"} size={12} class="muted" />
                  <span class="cut">{text}</span>
                </div>
                <div class="small muted">{clock(last.at)}</div>
              </li>
            );
          })}
        </ol>
      )}
      {shown?.picture && (
        <Dialog
          title={`After ${said(shown)}, ${clock(shown.actions.at(-1)!.at)}`}
          wide
          close={() => {
            large.value = undefined;
          }}
        >
          <span class="frame">
            <Picture of={shown} screen={s.desktop} />
          </span>
        </Dialog>
      )}
    </section>
  );
}

/** Picture shows a frame, and marks where its last inputs went. */
function Picture({ of: f, screen }: { of: Frame; screen: Sandbox["desktop"] }) {
  const at = f.actions.findLast((a) => a.cursor_x !== undefined);
  if (!f.picture) return <Icon name={ICONS[f.actions.at(-1)!.action] ?? "screen"} size={20} class="muted" />;
  return (
    <>
      <img src={f.picture} alt="" />
      {at && screen?.width && screen.height && (
        <i
          class="pointed"
          style={{ left: `${(100 * at.cursor_x!) / screen.width}%`, top: `${(100 * at.cursor_y!) / screen.height}%` }}
        />
      )}
    </>
  );
}
