// Leads requests of Superserve's SDK for the data plane of sandboxes to Cove. The SDK has
// the host names built in; nothing else is touched. Loaded with: node --import
const base = (process.env.SUPERSERVE_BASE_URL ?? '').trim().replace(/\/+$/, '');
const hosts = ['sandbox.superserve.ai', 'usw-sandbox.superserve.ai', 'staging-sandbox.superserve.ai'];

// moved returns the address on Cove for one of the product's, or undefined.
function moved(address) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return undefined;
  }
  for (const host of hosts) {
    const label = url.hostname === host ? '' : url.hostname.endsWith(`.${host}`) ? `/${url.hostname.slice(0, -host.length - 1)}` : undefined;
    if (label !== undefined) return base + label + url.pathname + url.search;
  }
  return undefined;
}

if (/^https?:\/\/.*\/superserve$/.test(base)) {
  const { fetch, WebSocket } = globalThis;
  globalThis.fetch = function (input, init) {
    if (input instanceof Request) {
      const to = moved(input.url);
      return to ? fetch(new Request(to, input), init) : fetch(input, init);
    }
    return fetch(moved(String(input)) ?? input, init);
  };
  if (WebSocket) {
    globalThis.WebSocket = class extends WebSocket {
      constructor(url, ...rest) {
        super(moved(String(url))?.replace(/^http/, 'ws') ?? url, ...rest);
      }
    };
    Object.defineProperty(globalThis.WebSocket, 'name', { value: 'WebSocket' });
  }
}
