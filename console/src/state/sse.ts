/** A server-sent event. */
export interface Message {
  id?: string;
  event?: string;
  data: string;
}

/** SSEParser takes the lines of a stream of server-sent events, and says when an event is whole. */
export class SSEParser {
  private data: string[] = [];
  private event: string | undefined;
  private id: string | undefined;

  line(text: string): Message | undefined {
    const line = text.endsWith("\r") ? text.slice(0, -1) : text;
    if (line === "") {
      const whole = this.data.length ? { id: this.id, event: this.event, data: this.data.join("\n") } : undefined;
      this.data = [];
      this.event = undefined;
      return whole;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return undefined; // a comment
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (field === "data") this.data.push(value);
    else if (field === "event") this.event = value;
    else if (field === "id") this.id = value;
    return undefined;
  }
}
