// The last things that were done with a computer, with a small picture of its screen after each. Pure but for the
// pictures' addresses, and tested.

export interface Action {
  /** The event's. */
  id: string;
  at: string;
  action: string;
  detail?: string;
  cursor_x?: number;
  cursor_y?: number;
}

/** A frame is what was done at once, and the screen after it. */
export interface Frame {
  id: string;
  actions: readonly Action[];
  /** The address of the picture, if there is one. */
  picture?: string;
  bytes: number;
}

/** Bounds of a film: its frames, the actions in one, and pictures in bytes, one and all together. */
export const FILM = { frames: 24, actions: 50, picture: 512 << 10, pictures: 4 << 20, together: 1000 };

interface Pictures {
  take: () => Promise<Blob>;
  keep: (picture: Blob) => string;
  drop: (address: string) => void;
}

/** Film keeps the frames of one computer. Actions that come while a picture is taken share the next one. */
export class Film {
  frames: readonly Frame[] = [];
  private taking = false;
  /** The frame that has no picture yet, because another one is being taken. */
  private waiting = "";
  private ended = false;

  constructor(
    private readonly pictures: Pictures,
    private readonly changed: (frames: readonly Frame[]) => void,
  ) {}

  /** past adds what was done before anybody looked: there are no pictures of that. */
  past(actions: readonly Action[]): void {
    const known = new Set(this.frames.flatMap((f) => f.actions.map((a) => a.id)));
    const groups: Action[][] = [];
    for (const a of actions) {
      if (known.has(a.id)) continue;
      const last = groups.at(-1)?.at(-1);
      if (last && Date.parse(a.at) - Date.parse(last.at) < FILM.together) groups.at(-1)!.push(a);
      else groups.push([a]);
    }
    const older = groups.map((g) => ({ id: g[0]!.id, actions: g.slice(-FILM.actions), bytes: 0 }));
    const when = (f: Frame) => Date.parse(f.actions[0]!.at);
    this.show([...older, ...this.frames].sort((a, b) => when(a) - when(b)));
  }

  /** add adds what was done now, and takes a picture of what comes of it. */
  add(action: Action): void {
    if (this.ended || this.frames.some((f) => f.actions.some((a) => a.id === action.id))) return;
    if (this.waiting) {
      this.change(this.waiting, (f) => ({ ...f, actions: [...f.actions, action].slice(-FILM.actions) }));
      return;
    }
    this.show([...this.frames, { id: action.id, actions: [action], bytes: 0 }]);
    if (this.taking) this.waiting = action.id;
    else void this.take(action.id);
  }

  /** end lets go of the pictures. */
  end(): void {
    this.ended = true;
    this.show([]);
  }

  private async take(id: string): Promise<void> {
    this.taking = true;
    try {
      const blob = await this.pictures.take();
      if (!this.ended && blob.size <= FILM.picture && this.frames.some((f) => f.id === id))
        this.change(id, (f) => ({ ...f, picture: this.pictures.keep(blob), bytes: blob.size }));
    } catch {
      // A frame without a picture still says what was done.
    }
    this.taking = false;
    const next = this.waiting;
    this.waiting = "";
    if (next) void this.take(next);
  }

  private change(id: string, by: (f: Frame) => Frame): void {
    this.show(this.frames.map((f) => (f.id === id ? by(f) : f)));
  }

  /** show keeps the newest frames, and pictures of as many as there is room for. */
  private show(frames: readonly Frame[]): void {
    let room = this.ended ? 0 : FILM.pictures;
    const kept: Frame[] = [];
    for (const f of frames.slice(-FILM.frames).reverse()) {
      room -= f.bytes;
      kept.unshift(f.picture && room < 0 ? { ...f, picture: undefined, bytes: 0 } : f);
    }
    const left = new Set(kept.map((f) => f.picture));
    for (const f of new Set([...this.frames, ...frames])) if (f.picture && !left.has(f.picture)) this.pictures.drop(f.picture);
    this.frames = kept;
    this.changed(kept);
  }
}
