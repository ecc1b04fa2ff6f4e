// Parts that are loaded when they are first shown.
import { useSignal } from "@preact/signals";
import type { ComponentType, JSX } from "preact";
import { useEffect } from "preact/hooks";
import { timed } from "../api/client";
import { connection } from "../state/live";
import { Failure, Loading } from "./kit";

/** lazy makes a component of one that is loaded when it is first shown. A page has its title until then. */
export function lazy<P extends object>(load: () => Promise<ComponentType<P>>, title?: string): (props: P) => JSX.Element {
  let loadedPart: ComponentType<P> | undefined;
  return function Lazy(props: P) {
    const ready = useSignal(!!loadedPart);
    const error = useSignal("");
    // A part that is asked for while there is no connection is asked for again when there is one.
    const connected = connection.value === "events";
    useEffect(() => {
      if (loadedPart) return;
      timed(load()).then(
        (c) => {
          loadedPart = c;
          ready.value = true;
          error.value = "";
        },
        () => {
          error.value = "This part of the console could not be loaded. If the server was updated, reload the page.";
        },
      );
    }, [connected]);
    const Part = loadedPart;
    if (!error.value && ready.value && Part) return <Part {...props} />;
    const instead = error.value ? <Failure error={error.value} again={() => location.reload()} /> : <Loading />;
    if (!title) return instead;
    return (
      <div class="page">
        <header class="bar">
          <h1>{title}</h1>
        </header>
        {instead}
      </div>
    );
  };
}

/** Editor shows a text, and lets it be changed. */
export const Editor = lazy(() => import("./editor").then((m) => m.default));
/** SideBySide shows two versions of a text beside each other. */
export const SideBySide = lazy(() => import("./editor").then((m) => m.SideBySide));
