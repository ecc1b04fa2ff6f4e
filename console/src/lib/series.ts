/** rates makes of counters what each grew by a second. A counter that fell has begun anew. */
export function rates(times: readonly number[], counters: readonly number[]): (number | null)[] {
  return counters.map((c, i) => {
    if (i === 0) return null;
    const dt = times[i]! - times[i - 1]!;
    const d = c - counters[i - 1]!;
    return dt > 0 && d >= 0 ? d / dt : null;
  });
}
