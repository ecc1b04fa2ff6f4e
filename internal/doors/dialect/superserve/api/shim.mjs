// Leads requests of Superserve's SDK for the data plane of sandboxes to Cove. The SDK has
// the host names built in; nothing else is touched. Loaded with: node --import
const base = (process.env.SUPERSERVE_BASE_URL ?? '').trim().replace(/\/+$/, '');
const hosts = ['sandbox.superserve.ai', 'usw-sandbox.superserve.ai', 'staging-sandbox.superserve.ai'];

// moved returns the address on Cove for one of the product's and the sandbox that it is
// for, if the host name tells, or undefined.
function moved(address) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return undefined;
  }
  for (const host of hosts) {
    if (url.hostname === host) return { to: base + url.pathname + url.search };
    if (!url.hostname.endsWith(`.${host}`)) continue;
    const label = url.hostname.slice(0, -host.length - 1);
    return { to: `${base}/${label}${url.pathname}${url.search}`, id: label.slice(label.indexOf('-') + 1) };
  }
  return undefined;
}

if (/^https?:\/\/.*\/superserve$/.test(base)) {
  const { fetch, WebSocket } = globalThis;
  globalThis.fetch = function (input, init) {
    const there = moved(input instanceof Request ? input.url : String(input));
    if (!there) return fetch(input, init);
    const request = input instanceof Request ? new Request(there.to, input) : there.to;
    if (!there.id) return fetch(request, init);
    const headers = new Headers(init?.headers ?? (input instanceof Request ? input.headers : undefined));
    headers.set('X-Superserve-Sandbox-Id', there.id);
    return fetch(request, { ...init, headers });
  };
  if (WebSocket) {
    globalThis.WebSocket = class extends WebSocket {
      constructor(url, ...rest) {
        super(moved(String(url))?.to.replace(/^http/, 'ws') ?? url, ...rest);
      }
    };
    Object.defineProperty(globalThis.WebSocket, 'name', { value: 'WebSocket' });
  }
}
