import assert from 'node:assert/strict';
import http from 'node:http';
import https from 'node:https';
import { create, shared, until } from '../harness.mjs';

// get asks a preview: over TLS by its host name, and else, where that need not resolve, by
// the address of the server.
function get(url, headers = {}) {
  const u = new URL(url);
  const plain = { host: '127.0.0.1', port: u.port, path: u.pathname + u.search, headers: { host: u.host, ...headers } };
  return new Promise((resolve, reject) => {
    const answered = (res) => {
      let text = '';
      res.on('data', (d) => { text += d; });
      res.on('end', () => resolve({ status: res.statusCode, text, headers: res.headers }));
    };
    const req = u.protocol === 'https:' ? https.get(u, { headers }, answered) : http.get(plain, answered);
    req.on('error', reject);
  });
}

const program = `import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(("hello " + self.path + " " + str("x-daytona-preview-token" in self.headers)).encode())
    def log_message(self, *a): pass
http.server.HTTPServer(("0.0.0.0", 8123), H).serve_forever()`;

async function serve(sbx) {
  await sbx.fs.uploadFile(Buffer.from(program), '/tmp/serve.py');
  await sbx.process.createSession('serve');
  await sbx.process.executeSessionCommand('serve', { command: 'python3 /tmp/serve.py', runAsync: true });
  await until('the program', async () => (await sbx.process.executeCommand('python3 -c "import socket; socket.create_connection((\'127.0.0.1\', 8123))"')).exitCode === 0);
}

export default async function previews(check) {
  const sbx = await shared();
  await check('a port with its token', ['smoke', 'Sandbox.getPreviewLink'], async () => {
    await serve(sbx);
    const { url, token } = await sbx.getPreviewLink(8123);
    assert.equal((await get(`${url}/a?b=c`, { 'x-daytona-preview-token': token })).text, 'hello /a?b=c False');
    assert.equal((await get(`${url}/a?DAYTONA_SANDBOX_AUTH_KEY=${token}&b=c`)).text, 'hello /a?b=c False');
    const other = await sbx.getPreviewLink(8124);
    for (const bad of [undefined, 'x', other.token, token.slice(0, -1) + (token.endsWith('0') ? '1' : '0')]) {
      const r = await get(url, bad ? { 'x-daytona-preview-token': bad } : {});
      assert.ok(r.status >= 400 && !r.text.includes('hello'), `${bad}: ${r.status}`);
    }
  });
  await check('a port with a signed link', ['Sandbox.getSignedPreviewUrl'], async () => {
    const { url } = await sbx.getSignedPreviewUrl(8123, 60);
    let r = await get(url);
    if (r.status >= 300 && r.status < 400) r = await get(new URL(r.headers.location, url).href, { cookie: r.headers['set-cookie'][0].split(';')[0] });
    assert.equal(r.text, 'hello / False');
    assert.equal((await get(url.replace(/=[^=]{4}/, '=aaaa'))).text.includes('hello'), false);
  });
  await check('a link of which clients end one', ['Sandbox.expireSignedPreviewUrl'], async () => {
    await sbx.expireSignedPreviewUrl(8123, (await sbx.getSignedPreviewUrl(8123, 60)).token);
  });
  await check('a port that is open to all', ['Sandbox.getPreviewLink'], async () => {
    const open = await create({ public: true });
    await serve(open);
    assert.equal((await get((await open.getPreviewLink(8123)).url)).text, 'hello / False');
    await open.delete();
  });
}
