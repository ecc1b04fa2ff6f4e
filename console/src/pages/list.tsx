// A page that is a list of one kind of thing.
import type { ComponentChildren } from "preact";
import { refusal } from "../api/session";
import type { IconName } from "../ui/icons";
import { Empty, Failure, Loading } from "../ui/kit";

interface Listed {
  error: { value: string };
  again: () => Promise<void>;
}

/** ListPage shows a table, or why there is none. A head without a text is that of the actions. */
export function ListPage<T>({
  title,
  action,
  load,
  items,
  icon,
  empty,
  about,
  head,
  row,
}: {
  title: string;
  action?: ComponentChildren;
  load: Listed;
  items: readonly T[] | undefined;
  icon: IconName;
  empty: string;
  about: string;
  head: (string | { text: string; num: true })[];
  row: (item: T) => ComponentChildren;
}) {
  return (
    <div class="page">
      <header class="bar">
        <h1>{title}</h1>
        {items && items.length > 0 && <span class="count">{items.length}</span>}
        <span class="grow" />
        {action}
      </header>
      {load.error.value ? (
        <Failure error={load.error.value} again={load.again} />
      ) : !items ? (
        <Loading />
      ) : items.length === 0 ? (
        <Empty icon={icon} title={empty} action={action}>
          {about}
        </Empty>
      ) : (
        <div class="scroll">
          <table class="data">
            <thead>
              <tr>
                {head.map((h) =>
                  typeof h === "string" ? (
                    <th key={h}>{h === "" ? <span class="vh">Actions</span> : h}</th>
                  ) : (
                    <th key={h.text} class="num">
                      {h.text}
                    </th>
                  ),
                )}
              </tr>
            </thead>
            <tbody>{items.map(row)}</tbody>
          </table>
        </div>
      )}
    </div>
  );
}

export function NotAllowed({ title, scope }: { title: string; scope: string }) {
  return (
    <div class="page">
      <header class="bar">
        <h1>{title}</h1>
      </header>
      <Empty icon="lock" title="Your key may not see this">
        {refusal(scope)}
      </Empty>
    </div>
  );
}
