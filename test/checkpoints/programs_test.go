package checkpoints

// What runs inside the sandboxes whose survival is tested. Every program
// listens on a Unix socket named after it in /workspace/w and answers one
// request a connection: a line of a verb and its arguments, answered by one
// line of JSON. "digest" is what must be the same for ever, as long as nobody
// says "mutate N"; saying it twice brings the old state back. "tick" is a
// number that must grow.

// programPython holds the programs that are Python.
const programPython = `
import ctypes, fcntl, hashlib, http.client, http.server, json, mmap, os, select
import signal, socket, sqlite3, subprocess, sys, threading, time

W = "/workspace/w/"

def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]

def serve(name, **verbs):
    s = socket.socket(socket.AF_UNIX)
    s.bind(W + name + ".tmp")
    s.listen(64)
    os.chmod(W + name + ".tmp", 0o777)
    os.rename(W + name + ".tmp", W + name)
    while True:
        c, _ = s.accept()
        with c:
            line = c.makefile().readline().split()
            try:
                reply = verbs[line[0]](*line[1:])
            except Exception as e:
                reply = {"error": repr(e)}
            c.sendall(json.dumps(reply).encode() + b"\n")

class Clock:
    "Counts in a thread of its own."
    def __init__(self):
        self.n = 0
        threading.Thread(target=self.run, daemon=True).start()
    def run(self):
        while True:
            time.sleep(0.05)
            self.n += 1
    def tick(self):
        return self.n

def memory(mib):
    "Random memory, and who this process thinks it is."
    state = bytearray(os.urandom(int(mib) << 20))
    clock = Clock()
    def mutate(n):
        for i in range(0, len(state), 1 << 16):
            state[i] ^= int(n)
    def random_state():
        libc = ctypes.CDLL(None)
        buf = ctypes.create_string_buffer(16)
        if libc.getrandom(buf, 16, 0) != 16:
            raise OSError("getrandom")
        with open("/dev/urandom", "rb") as f:
            device = f.read(16)
        return [buf.raw.hex(), device.hex(), os.urandom(16).hex()]
    serve("memory", digest=lambda: digest(state), tick=clock.tick, mutate=mutate, random=random_state,
          who=lambda: [socket.gethostname(), os.environ.get("COVE_FORK_INDEX", ""), os.environ["BORN"]],
          time=time.time)

def files():
    "Files that are open in ways that a copy of their directory would miss."
    os.makedirs("/workspace/many", exist_ok=True)
    for i in range(10000):
        with open("/workspace/many/f%05d" % i, "wb") as f:
            f.write(b"%d %d" % (i, i * 7919))
    deleted = open("/workspace/deleted", "w+b", buffering=0)
    deleted.write(os.urandom(3 << 20))
    os.unlink("/workspace/deleted")
    memory_deleted = open("/tmp/deleted", "w+b", buffering=0)
    memory_deleted.write(os.urandom(1 << 20))
    os.unlink("/tmp/deleted")
    paths = {"plain": "/workspace/plain", "tmp": "/tmp/plain", "shm": "/dev/shm/plain"}
    for p in paths.values():
        with open(p, "wb") as f:
            f.write(os.urandom(2 << 20))
    def mapped(path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, 1 << 20)
        m = mmap.mmap(fd, 1 << 20)
        m[:] = os.urandom(1 << 20)
        return m
    maps = {"mmap": mapped("/workspace/mapped"), "posix_shm": mapped("/dev/shm/mapped")}
    lock = open("/workspace/lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    def whole(f):
        os.lseek(f.fileno(), 0, os.SEEK_SET)
        return f.read()
    def many():
        h = hashlib.sha256()
        names = sorted(os.listdir("/workspace/many"))
        for n in names[::40] + names[-1:]:
            with open("/workspace/many/" + n, "rb") as f:
                h.update(n.encode() + f.read())
        h.update("".join(names).encode())
        return "%d %s" % (len(names), h.hexdigest()[:16])
    def locked():
        # Another process sees the lock: opened anew, it is another description.
        with open("/workspace/lock") as f:
            try:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return "the lock is lost"
            except BlockingIOError:
                return "locked"
    def digests():
        out = {"deleted": digest(whole(deleted)), "memory_deleted": digest(whole(memory_deleted)),
               "links": os.fstat(deleted.fileno()).st_nlink, "many": many(), "lock": locked()}
        for name, p in paths.items():
            with open(p, "rb") as f:
                out[name] = digest(f.read())
        for name, m in maps.items():
            out[name] = digest(m[:])
        # What is written through a mapping is seen through the file.
        for name, p in {"mmap": "/workspace/mapped", "posix_shm": "/dev/shm/mapped"}.items():
            with open(p, "rb") as f:
                if digest(f.read()) != out[name]:
                    out[name] = "the mapping is not the file"
        return out
    def mutate(n):
        def xor(fd):
            at = 4096
            b = os.pread(fd, 1, at)
            os.pwrite(fd, bytes([b[0] ^ int(n)]), at)
        xor(deleted.fileno())
        xor(memory_deleted.fileno())
        for p in paths.values():
            with open(p, "r+b") as f:
                xor(f.fileno())
        for m in maps.values():
            m[5] ^= int(n)
        extra = "/workspace/many/extra"
        if os.path.exists(extra):
            os.unlink(extra)
        else:
            with open(extra, "w") as f:
                f.write(n)
    serve("files", digest=digests, mutate=mutate)

def ipc():
    "Kernel objects between processes."
    clock = Clock()
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        n = 0
        while True:
            b = theirs.recv(100)
            if not b:
                os._exit(0)
            n += 1
            theirs.sendall(b"%d:" % n + b)
    theirs.close()
    os.mkfifo("/workspace/fifo")
    fifo_read = os.open("/workspace/fifo", os.O_RDONLY | os.O_NONBLOCK)
    fifo_write = os.open("/workspace/fifo", os.O_WRONLY)
    os.write(fifo_write, b"unread in the pipe")
    ev = os.eventfd(41, os.EFD_NONBLOCK | os.EFD_SEMAPHORE)
    ep = select.epoll()
    ep.register(ev, select.EPOLLIN)
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK)
    os.makedirs("/workspace/watched")
    if libc.inotify_add_watch(watch, b"/workspace/watched", 0x100) < 0:
        raise OSError(ctypes.get_errno(), "inotify_add_watch")
    queue_read, queue_write = os.pipe()
    def wait_in_pipe():
        while True:
            os.write(queue_write2, os.read(queue_read, 10))
    queue_read2, queue_write2 = os.pipe()
    threading.Thread(target=wait_in_pipe, daemon=True).start()
    alarms = [0]
    def rang(*_):
        alarms[0] += 1
    signal.signal(signal.SIGALRM, rang)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    connection = None
    said, made = 0, 0
    def digests():
        nonlocal said, made, connection
        said += 1
        made += 1
        out = {}
        ours.sendall(b"hello")
        out["socketpair"] = "ok" if ours.recv(100) == b"%d:hello" % said else "wrong answer"
        held = os.read(fifo_read, 100)
        os.write(fifo_write, held)
        out["fifo"] = held.decode()
        out["epoll"] = [e for fd, e in ep.poll(1) if fd == ev]
        value = 0
        try:
            while True:
                value += os.eventfd_read(ev)
        except BlockingIOError:
            pass
        os.eventfd_write(ev, value)
        out["eventfd"] = value
        open("/workspace/watched/n%d" % made, "w").close()
        r, _, _ = select.select([watch], [], [], 60)
        out["inotify"] = os.read(watch, 4096)[16:].rstrip(b"\0").decode() == "n%d" % made if r else "no event"
        os.write(queue_write, b"x")
        r, _, _ = select.select([queue_read2], [], [], 60)
        out["blocked thread"] = os.read(queue_read2, 10).decode() if r else "stays blocked"
        # The connection was opened before, and is kept.
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", 8000, timeout=60)
            connection.connect()
            connection.auto_open = 0
        connection.request("GET", "/who")
        out["kept connection"] = connection.getresponse().read().decode()
        return out
    serve("ipc", digest=digests, tick=clock.tick, alarms=lambda: alarms[0])

def web():
    state = {"0": 0}
    served = [0]
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        def log_message(self, *_):
            pass
        def do_GET(self):
            served[0] += 1
            body = {"/who": "web", "/state": json.dumps(sorted(state.items())), "/served": str(served[0])}[self.path].encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        def do_POST(self):
            n = self.path[1:]
            if state.pop(n, None) is None:
                state[n] = 1
            self.send_response(204)
            self.end_headers()
    http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()

def database():
    "A database in the middle of a transaction."
    db = sqlite3.connect(W + "data.db", isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v BLOB)")
    db.execute("INSERT INTO t VALUES (1, 'committed')")
    db.execute("BEGIN IMMEDIATE")
    db.executemany("INSERT INTO t VALUES (?, ?)", [(i, os.urandom(200)) for i in range(2, 2002)])
    def inside():
        rows = db.execute("SELECT k, v FROM t ORDER BY k").fetchall()
        return "%d %s" % (len(rows), digest(repr(rows).encode()))
    def outside():
        with sqlite3.connect(W + "data.db") as other:
            n = other.execute("SELECT count(*) FROM t").fetchone()[0]
            return [n, other.execute("PRAGMA integrity_check").fetchone()[0]]
    def mutate(n):
        if db.execute("DELETE FROM t WHERE k = ?", (9000 + int(n),)).rowcount == 0:
            db.execute("INSERT INTO t VALUES (?, 'new')", (9000 + int(n),))
    def end(how):
        db.execute(how)
        return outside()
    serve("database", digest=lambda: {"inside": inside(), "outside": outside()}, mutate=mutate, outside=outside, end=end)

def other_user(uid):
    "A process that has put its rights away, and one that may signal it."
    secret = os.urandom(100)
    os.setgroups([])
    os.setresgid(int(uid), int(uid), int(uid))
    os.setresuid(int(uid), int(uid), int(uid))
    with open("/workspace/w/of-other", "wb") as f:
        f.write(secret)
    os.chmod("/workspace/w/of-other", 0o600)
    def check():
        st = os.stat("/workspace/w/of-other")
        with open("/workspace/w/of-other", "rb") as f:
            kept = f.read() == secret
        try:
            open("/proc/1/mem", "rb").close()
            rights = "more"
        except OSError:
            rights = "few"
        return [os.getresuid(), os.getresgid(), st.st_uid, oct(st.st_mode), kept, digest(secret), rights]
    serve("other_user", digest=check)

def ask(name, *line):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(240)
    s.connect(W + name)
    s.sendall((" ".join(line) + "\n").encode())
    answer = json.loads(s.makefile().readline())
    if isinstance(answer, dict) and "error" in answer:
        raise RuntimeError(name + " " + line[0] + ": " + answer["error"])
    return answer

def get(path, method="GET"):
    # Not urllib: it is slow to import.
    c = http.client.HTTPConnection("127.0.0.1", 8000, timeout=60)
    c.request(method, path)
    return c.getresponse().read().decode()

def tmux():
    "Asks the shell in the terminal for its variables."
    answer = W + "tmux-answer"
    if os.path.exists(answer):
        os.unlink(answer)
    line = "N=$((N+1)); echo $SECRET $(nested) $$ $N > %s.tmp; mv %s.tmp %s" % (answer, answer, answer)
    subprocess.run(["tmux", "send-keys", "-t", "work", line, "Enter"], check=True)
    end = time.monotonic() + 60
    while not os.path.exists(answer):
        if time.monotonic() > end:
            raise TimeoutError("the shell in tmux does not answer")
        time.sleep(0.005)
    words = open(answer).read().split()
    return words[:3], int(words[3])

def everything(*skip):
    "The digest of all programs in one object, and their ticks in another."
    answers, ticks, failed = {}, {}, []
    def collect(name, what):
        def run():
            try:
                what()
            except Exception as e:
                failed.append("%s: %r" % (name, e))
        t = threading.Thread(target=run)
        t.start()
        return t
    def of(name):
        answers[name] = ask(name, "digest")
    def terminal():
        answers["tmux"], ticks["tmux"] = tmux()
    def page():
        answers["web"] = get("/state")
        ticks["web"] = int(get("/served"))
    threads = [collect(n, lambda n=n: of(n)) for n in ("memory", "files", "ipc", "database", "other_user", "node") if n not in skip]
    threads += [collect("tmux", terminal), collect("web", page)]
    for t in threads:
        t.join()
    if not failed:
        for n in ("memory", "ipc", "node"):
            ticks[n] = ask(n, "tick")
        ticks["alarms"] = ask("ipc", "alarms")
        ticks["traced"] = os.path.getsize(W + "trace")
    print(json.dumps({"answers": answers, "ticks": ticks, "failed": failed, "time": time.time(),
        "hostname": socket.gethostname(), "who": ask("memory", "who"), "random": ask("memory", "random")}))

def network():
    "What a new connection to the outside says, and how many old ones are there."
    for _ in range(5): # until the machine has time
        s = socket.socket()
        s.settimeout(20)
        began = time.monotonic()
        try:
            s.connect(("169.254.77.1", 80))
            said = "connected"
        except OSError as e:
            said = type(e).__name__
        soon = time.monotonic() - began < 3
        if soon:
            break
    with open("/proc/net/tcp") as f:
        agents = [l.split()[3] for l in f if l.split()[1].endswith(":1B5F")]
    print(said, soon, len([a for a in agents if a != "0A"]) <= 2)

def mutate(n):
    for name in ("memory", "files", "database", "node"):
        ask(name, "mutate", n)
    get("/" + n, "POST")
    subprocess.run(["tmux", "send-keys", "-t", "work", "toggle " + n, "Enter"], check=True)
    tmux()

verb, args = sys.argv[1], sys.argv[2:]
if verb == "ask":
    print(json.dumps(ask(*args)))
else:
    globals()[verb](*args)
`

// programNode is a program for Node.
const programNode = `
const net = require("net"), crypto = require("crypto"), fs = require("fs");
const state = new Map(), heap = crypto.randomBytes(8 << 20);
state.set("born", crypto.randomBytes(8).toString("hex"));
let ticks = 0;
setInterval(() => { ticks++ }, 50);
const verbs = {
  digest: () => crypto.createHash("sha256").update(heap).update(JSON.stringify([...state])).digest("hex").slice(0, 16),
  tick: () => ticks,
  mutate: (n) => { state.has(n) ? state.delete(n) : state.set(n, 1); heap[12345] ^= Number(n); return null },
};
const server = net.createServer((c) => c.once("data", (d) => {
  const [verb, ...args] = d.toString().trim().split(" ");
  c.end(JSON.stringify(verbs[verb](...args)) + "\n");
}));
server.listen("/workspace/w/node.tmp", () => fs.renameSync("/workspace/w/node.tmp", "/workspace/w/node"));
`

// programMake is a project that takes some seconds to build and then prints a number
// that is right only if every part is.
const programMake = `
PARTS = 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20
result: $(PARTS:%=part%.o) main.o
	gcc -o prog $^ && ./prog > $@.tmp && mv $@.tmp $@
part%.c:
	sleep $(PAUSE)
	echo 'int part$*(void) { return $* * $*; }' > $@
%.o: %.c
	gcc -c -o $@ $<
	echo $* >> log
main.c:
	(for i in $(PARTS); do echo "int part$$i(void);"; done; echo '#include <stdio.h>'; \
	echo 'int main(void) { int s = 0;'; for i in $(PARTS); do echo "s += part$$i();"; done; \
	echo 'return printf("%d", s) < 0; }') > $@
.SECONDARY:
`

// madeResult is what the project prints: the sum of the squares of 1 to 20.
const madeResult = "2870"

// programTmux starts a shell in a terminal and gives it a state. The command
// lines come from a file, as the terminal would mangle them.
const programTmux = `
SECRET=s-$(od -An -N8 -tx1 /dev/urandom | tr -d ' \n')
nested() { echo "${TOGGLED:-none}"; }
toggle() { if [ "$TOGGLED" = "$1" ]; then unset TOGGLED; else TOGGLED=$1; fi; }
N=0
`
