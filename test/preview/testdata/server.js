// A server with everything that a preview has to carry, in plain Node.
const http = require('http');
const crypto = require('crypto');

const server = http.createServer((req, res) => {
  const url = new URL(req.url, 'http://inside');
  switch (url.pathname) {
    case '/headers':
      res.setHeader('Content-Type', 'application/json');
      res.setHeader('Set-Cookie', ['mine=1; Domain=localhost; Path=/', 'cove_preview=evil']);
      res.end(JSON.stringify({ url: req.url, headers: req.headers }));
      return;
    case '/events': {
      res.setHeader('Content-Type', 'text/event-stream');
      let n = 0;
      const timer = setInterval(() => res.write(`data: ${n++}\n\n`), 100);
      res.on('close', () => clearInterval(timer));
      return;
    }
    case '/sum': {
      const sum = crypto.createHash('sha256');
      let n = 0;
      req.on('data', (d) => { n += d.length; sum.update(d); });
      req.on('end', () => res.end(`${n} ${sum.digest('hex')}`));
      return;
    }
    case '/zeros': {
      let left = Number(url.searchParams.get('n'));
      res.setHeader('Content-Length', left);
      const block = Buffer.alloc(1 << 16);
      const push = () => {
        while (left > 0) {
          const part = block.subarray(0, Math.min(left, block.length));
          left -= part.length;
          if (!res.write(part)) { res.once('drain', push); return; }
        }
        res.end();
      };
      push();
      return;
    }
  }
  res.end(`node says hello to ${req.method} ${req.url}\n`);
});

// A WebSocket that sends back what it gets, for messages below 64 KiB.
server.on('upgrade', (req, socket, head) => {
  const accept = crypto.createHash('sha1').update(req.headers['sec-websocket-key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest('base64');
  socket.write(`HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`);
  let got = head;
  const work = () => {
    while (got.length >= 6) {
      let size = got[1] & 0x7f, at = 2;
      if (size === 126) { if (got.length < 8) return; size = got.readUInt16BE(2); at = 4; }
      if (got.length < at + 4 + size) return;
      const mask = got.subarray(at, at + 4), data = Buffer.from(got.subarray(at + 4, at + 4 + size));
      for (let i = 0; i < size; i++) data[i] ^= mask[i & 3];
      const opcode = got[0] & 0x0f;
      got = got.subarray(at + 4 + size);
      const header = size < 126 ? Buffer.from([0x80 | opcode, size]) : Buffer.from([0x80 | opcode, 126, size >> 8, size & 255]);
      socket.write(Buffer.concat([header, data]));
      if (opcode === 8) { socket.end(); return; }
    }
  };
  socket.on('data', (d) => { got = Buffer.concat([got, d]); work(); });
  socket.on('error', () => {});
  work();
});

server.listen(Number(process.argv[2]), '0.0.0.0');
