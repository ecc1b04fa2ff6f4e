import { ApiError, LOST } from "../api/client";

/** whyUnheard says of a run of code that was not heard to its end what has become of it. A run cannot be gone back
 * to: its interpreter is interrupted when nobody hears it. */
export function whyUnheard(err: Error): string {
  if (!(err instanceof ApiError) || err.status) return err.message;
  if (err.code === LOST)
    return "The connection was lost before the end, which interrupts the code. What it did until then stays. Run the cell again.";
  return "The server does not answer, so the code has most likely not begun. Run the cell again when the connection is back.";
}
