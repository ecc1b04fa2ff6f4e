// Lists of one kind of thing.
import type { ComponentChildren } from "preact";
import { refusal } from "../api/session";
import type { IconName } from "../ui/icons";
import { Empty, Failure, Loading, Scrolled } from "../ui/kit";

interface Listed<T> {
  load: { error: { value: string }; again: () => unknown };
  items: readonly T[] | undefined;
  /** A head without a text is that of the actions. */
  head: (string | { text: string; num: true })[];
  row: (item: T, index: number) => ComponentChildren;
}

/** Listing is a table, or why there is none. What was listed before a failure stays below it. */
export function Listing<T>({
  load,
  items,
  head,
  row,
  none,
  name,
  class: cls,
}: Listed<T> & { /** What is shown when there is nothing. */ none: ComponentChildren; name: string; class?: string }) {
  return (
    <>
      {load.error.value && <Failure error={load.error.value} again={load.again} />}
      {!items?.length ? (
        load.error.value ? null : items ? (
          none
        ) : (
          <Loading />
        )
      ) : (
        <Scrolled name={name} class={cls}>
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
        </Scrolled>
      )}
    </>
  );
}

/** ListPage is a page that is one list. */
export function ListPage<T>({
  title,
  action,
  icon,
  empty,
  about,
  ...list
}: Listed<T> & { title: string; action?: ComponentChildren; icon: IconName; empty: string; about: ComponentChildren }) {
  const none = (
    <Empty icon={icon} title={empty} action={action}>
      {about}
    </Empty>
  );
  return (
    <div class="page">
      <header class="bar">
        <h1>{title}</h1>
        {!!list.items?.length && <span class="count">{list.items.length}</span>}
        <span class="grow" />
        {action}
      </header>
      <Listing {...list} name={title} none={none} class="scroll" />
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
