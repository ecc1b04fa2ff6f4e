"""A page with a form, inside the sandbox. What the page sends is in /workspace/log."""
import http.server
import os
import urllib.parse

PAGE = """<!doctype html><meta charset="utf-8"><title>Form</title>
<style>body{margin:0;background:#2ec27e;font:24px sans-serif}input{margin:30px;font:inherit;width:24em}
button{width:160px;height:80px;border:0;margin-left:30px;background:#c01c8d}</style>
<form method="post" action="/form"><input name="q" autofocus><br><button id="go"></button></form>
<script>
document.addEventListener('keydown', (e) => fetch('/key?' + encodeURIComponent(e.key)));
addEventListener('load', () => requestAnimationFrame(() => setTimeout(() => fetch('/shown' + location.pathname))));
</script>"""
DONE = '<!doctype html><meta charset="utf-8"><title>Done</title><style>body{background:#e5a50a}</style>'


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def note(self, line):
        with open('/workspace/log', 'a', encoding='utf-8') as f:
            f.write(line + '\n')

    def answer(self, body):
        data = body.encode()
        self.send_response(200)
        self.send_header('Content-Type', 'text/html; charset=utf-8')
        self.send_header('Content-Length', str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.note('GET ' + urllib.parse.unquote(self.path))
        self.answer(DONE if self.path.startswith('/done') else PAGE)

    def do_POST(self):
        form = urllib.parse.parse_qs(self.rfile.read(int(self.headers['Content-Length'])).decode())
        self.note('form ' + form.get('q', [''])[0])
        self.answer(DONE)

    def log_message(self, *args):
        pass


os.chdir('/')
http.server.ThreadingHTTPServer(('127.0.0.1', 8000), Handler).serve_forever()
