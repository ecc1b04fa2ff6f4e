/** pooled calls f for each item, for some of them at a time. */
export async function pooled<T>(items: readonly T[], most: number, f: (item: T) => Promise<unknown>): Promise<void> {
  const rest = [...items];
  const work = async () => {
    for (let item = rest.shift(); item !== undefined; item = rest.shift()) await f(item);
  };
  await Promise.all(Array.from({ length: most }, work));
}
