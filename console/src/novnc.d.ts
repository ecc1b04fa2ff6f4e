declare module "@novnc/novnc" {
  /** The part of noVNC's client that the console uses. */
  export default class RFB extends EventTarget {
    constructor(target: HTMLElement, url: string | WebSocket, options?: { shared?: boolean });
    viewOnly: boolean;
    scaleViewport: boolean;
    background: string;
    disconnect(): void;
    focus(): void;
    blur(): void;
  }
}
