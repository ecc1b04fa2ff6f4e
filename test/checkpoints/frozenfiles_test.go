package checkpoints

import (
	"fmt"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// fileCounters is as [counters], but each thread writes its number into pages of private
// memory and of all that can be written to in a sandbox and is shared: files on the disk and
// in memory, by system calls and by mappings, and shared memory of each kind. Whatever is
// written one way is read another way, too.
const fileCounters = `
import ctypes, mmap, os, struct, threading
PAGE, MIB, THREADS = 4096, %d, 4
SIZE = MIB << 20
pages = SIZE // PAGE // THREADS
passes, wrong = [0] * THREADS, []

def made(path, fd=None):
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600) if fd is None else fd
    for i in range(MIB): os.pwrite(fd, bytes(1 << 20), i << 20)
    return fd

class Calls:
    def __init__(self, fd): self.fd = fd
    def get(self, i): return struct.unpack("<Q", os.pread(self.fd, 8, i * PAGE + 16))[0]
    def put(self, i, n): os.pwrite(self.fd, struct.pack("<Q", n), i * PAGE + 16)

class Mapped:
    def __init__(self, memory): self.memory = memory
    def get(self, i): return struct.unpack_from("<Q", self.memory, i * PAGE + 16)[0]
    def put(self, i, n): struct.pack_into("<Q", self.memory, i * PAGE + 16, n)

class Both:
    "has some ways to read and some to write the same, and uses them in turn"
    def __init__(self, *ways, writers): self.ways, self.writers = ways, writers
    def get(self, i):
        seen = {w.get(i) for w in self.ways}
        return seen.pop() if len(seen) == 1 else sorted(seen)
    def put(self, i, n): self.ways[n %% self.writers].put(i, n)

def shared(fd): return Mapped(mmap.mmap(fd, SIZE))
def readonly(fd, flags=mmap.MAP_SHARED): return Mapped(mmap.mmap(fd, SIZE, flags, mmap.PROT_READ))

def sysv():
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    at = libc.shmat(libc.shmget(0, ctypes.c_size_t(SIZE), 0o1600), None, 0)
    assert at != ctypes.c_void_p(-1).value, ctypes.get_errno()
    return Mapped(memoryview((ctypes.c_char * SIZE).from_address(at)).cast("B"))

def ways(path, fd=None):
    fd = made(path, fd)
    ro = os.open("/proc/self/fd/%%d" %% fd, os.O_RDONLY)
    return Both(shared(fd), Calls(fd), readonly(ro), writers=2)

def reads(path):
    fd = made(path)
    ro = os.open(path, os.O_RDONLY)
    return Both(Calls(fd), readonly(ro), readonly(ro, mmap.MAP_PRIVATE), writers=1)

os.makedirs("/workspace/frozen", exist_ok=True)
kinds = {
    "memory": Mapped(mmap.mmap(-1, SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)),
    "disk": Calls(made("/workspace/frozen/calls")),
    "mapped": ways("/workspace/frozen/mapped"),
    "read": reads("/workspace/frozen/read"),
    "tmp": Calls(made("/tmp/frozen")),
    "shm": ways("/dev/shm/frozen"),
    "memfd": ways(None, os.memfd_create("frozen")),
    "anonymous": Mapped(mmap.mmap(-1, SIZE, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)),
    "sysv": sysv(),
}

def count(t):
    n = 0
    while True:
        n += 1
        for i in range(t * pages, (t + 1) * pages):
            for name, kind in kinds.items():
                had = kind.get(i)
                if had != n - 1:
                    wrong.append((t, i, name, had, n - 1))
                    return
                kind.put(i, n)
        passes[t] = n
for t in range(THREADS):
    threading.Thread(target=count, args=(t,), daemon=True).start()
`

// A sandbox that writes without end to files and shared memory of each kind goes on while
// these are still to be written for its children and snapshots: each has all of them and its
// memory as of one instant, and nobody sees what another writes.
func TestFilesAreOfOneInstant(t *testing.T) {
	covetest.Patched(t)
	mib, rounds := int64(2), 1
	if needs.Soak() {
		mib, rounds = 64, 20
	}
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 20*mib + 512, VCPUs: 2}})
		python(t, d, s.ID, fmt.Sprintf(fileCounters, mib))
		goesOn(t, d, s.ID)
		for round := range rounds {
			child := forksOf(t, d, s.ID, 1)[0]
			children := append(forksOf(t, d, child, 1), child) // it is forked while it still loads
			snapshot := must(d.Client.CreateSnapshot(t.Context(), s.ID, sandbox.CreateSnapshotRequest{}))(t)
			goesOn(t, d, s.ID)
			for _, id := range children {
				goesOn(t, d, id)
				must(d.Client.Kill(t.Context(), id))(t)
			}
			restored := must(d.Client.Create(t.Context(), sandbox.CreateRequest{Snapshot: snapshot.ID}))(t)
			goesOn(t, d, restored.ID)
			must(d.Client.Kill(t.Context(), restored.ID))(t)
			if t.Failed() {
				t.Fatalf("in round %d", round)
			}
		}
		if n := frozenMiB(t, d, s.ID); n < mib*8 {
			t.Errorf("it has gone on before %d MiB were written, of %d and more", n, mib*8)
		}
	})
}

// canaries is a program of two threads that without end write the files of a place, each of
// which they then change in another way, and look at all of them before and after that; and
// of one whose transactions change two tables alike. Beside them it has written as much as
// many MiB.
const canaries = `
import ctypes, mmap, os, socket, sqlite3, threading
SIZE = (2 << 20) + 1234
PLACES = ["/workspace/canaries", "/dev/shm/canaries"]
NAMES = ["truncated", "renamed", "removed", "appended", "ranged", "spliced", "direct", "shared", "private", "sent", "punched", "overwritten", "untouched"]
ORIGINAL = {n: os.urandom(SIZE) for n in NAMES}
libc = ctypes.CDLL(None, use_errno=True)
passes, wrong = [0, 0, 0], []
def path(place, name): return os.path.join(place, name)
os.makedirs("/workspace/filler", exist_ok=True)
for i in range(%d):
    with open("/workspace/filler/%%d" %% i, "wb") as f: f.write(os.urandom(1 << 20))

def write(place):
    "writes all, in place where it can"
    for name in NAMES:
        with open(os.open(path(place, name), os.O_RDWR | os.O_CREAT), "r+b") as f:
            f.write(ORIGINAL[name]); f.truncate(SIZE)
    return [(place, n) for n in NAMES if open(path(place, n), "rb").read() != ORIGINAL[n]]

def files(t):
    place = PLACES[t]
    os.makedirs(place, exist_ok=True)
    while True:
        bad = write(place) + change(place)
        if bad:
            wrong.extend(bad)
            return
        passes[t] += 1

def transactions():
    db = sqlite3.connect("/workspace/canaries.db", isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.executescript("CREATE TABLE a(n INTEGER); CREATE TABLE b(n INTEGER, pad BLOB); INSERT INTO a VALUES(0)")
    other = sqlite3.connect("/workspace/canaries.db", isolation_level=None)
    while True:
        n = passes[2] + 1
        for i in range(50):
            at = n * 50 + i
            db.execute("BEGIN IMMEDIATE")
            db.execute("UPDATE a SET n = ?", (at,))
            db.execute("INSERT INTO b VALUES(?, randomblob(2000))", (at,))
            db.execute("DELETE FROM b WHERE n < ?", (at - 500,))
            db.execute("COMMIT")
        a, b, count = other.execute("SELECT (SELECT n FROM a), max(n), count(*) FROM b").fetchone()
        ok = other.execute("PRAGMA integrity_check").fetchone()[0]
        if not (a == b == at and count == min(501, n * 50) and ok == "ok"):
            wrong.append(("database", at, a, b, count, ok))
            return
        passes[2] = n

def change(place):
    bad = []
    def check(name, got, want):
        if got != want: bad.append((place, name, len(got), len(want), next((i for i, (g, w) in enumerate(zip(got, want)) if g != w), -1)))
    want = {n: bytearray(ORIGINAL[n]) for n in NAMES}
    at = lambda n: path(place, n)
    os.truncate(at("truncated"), 70001)
    os.truncate(at("truncated"), 80000)
    want["truncated"][70001:] = bytes(9999)
    with open(at("renamed"), "r+b") as f:
        os.rename(at("renamed"), at("renamed to"))
        f.seek(5000); f.write(b"new")
    want["renamed to"] = want.pop("renamed"); want["renamed to"][5000:5003] = b"new"
    removed = os.open(at("removed"), os.O_RDWR)
    os.remove(at("removed"))
    os.pwrite(removed, b"new", 100)
    gone = want.pop("removed"); gone[100:103] = b"new"
    check("removed", os.pread(removed, SIZE + 1, 0), bytes(gone))
    os.close(removed)
    with open(at("appended"), "ab") as f: f.write(b"new" * 5000)
    want["appended"] += b"new" * 5000
    with open(at("untouched"), "rb") as src, open(at("ranged"), "r+b") as dst:
        n = os.copy_file_range(src.fileno(), dst.fileno(), 50000, 4096 * 3, 7)
    want["ranged"][7:7 + n] = want["untouched"][4096 * 3:4096 * 3 + n]
    r, w = os.pipe()
    with open(at("untouched"), "rb") as src, open(at("spliced"), "r+b") as dst:
        n = os.splice(src.fileno(), w, 40000, offset_src=100)
        n = os.splice(r, dst.fileno(), n, offset_dst=9000)
    os.close(r); os.close(w)
    want["spliced"][9000:9000 + n] = want["untouched"][100:100 + n]
    try: fd = os.open(at("direct"), os.O_RDWR | os.O_DIRECT)
    except OSError: fd = os.open(at("direct"), os.O_RDWR)
    page = mmap.mmap(-1, 8192); page[:] = b"d" * 8192
    os.pwritev(fd, [page], 16384); os.close(fd); page.close()
    want["direct"][16384:16384 + 8192] = b"d" * 8192
    with open(at("shared"), "r+b") as f, mmap.mmap(f.fileno(), 0) as m, open(at("shared"), "r+b") as g, mmap.mmap(g.fileno(), 0, prot=mmap.PROT_READ) as seen:
        m[123456:123459] = b"new"; m.flush()
        g.seek(200000); g.write(b"new"); g.flush()
        check("seen", seen[123456:123459] + seen[200000:200003] + m[200000:200003], b"new" * 3)
    want["shared"][123456:123459] = want["shared"][200000:200003] = b"new"
    with open(at("private"), "r+b") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY) as m:
        m[8192:8195] = b"own"
        os.pwrite(f.fileno(), b"new", 9000)
        check("own", m[8192:8195], b"own")
    want["private"][9000:9003] = b"new"
    a, b = socket.socketpair()
    with open(at("sent"), "r+b") as f:
        n = os.sendfile(a.fileno(), f.fileno(), 4096, 30000)
        check("received", b.recv(n, socket.MSG_WAITALL), want["sent"][4096:4096 + n])
        os.pwrite(f.fileno(), b"new", 5000)
    want["sent"][5000:5003] = b"new"
    a.close(); b.close()
    fd = os.open(at("punched"), os.O_RDWR)
    if libc.fallocate(fd, 3, ctypes.c_long(5000), ctypes.c_long(100000)) == 0:
        want["punched"][5000:105000] = bytes(100000)
    os.posix_fallocate(fd, 0, SIZE + 50000)
    want["punched"] += bytes(50000)
    os.close(fd)
    with open(at("overwritten"), "r+b") as f: f.write(b"all" * (SIZE // 3))
    want["overwritten"][:SIZE // 3 * 3] = b"all" * (SIZE // 3)
    for n, w in want.items(): check(n, open(at(n), "rb").read(), bytes(w))
    os.remove(at("renamed to"))
    return bad

for target, *args in [(files, 0), (files, 1), (transactions,)]:
    threading.Thread(target=target, args=args, daemon=True).start()
`

// Whatever a sandbox does to its files while they are still to be written for its children,
// each has all as of one instant, and what it does from then on has the effect that it should
// have. A comparison with a child and a merge see the files as they were at the fork.
// In "make test", TestFilesAreOfOneInstant and gVisor's own TestFreeze... stand for it.
func TestSoakFilesChangedWhileWritten(t *testing.T) {
	covetest.Patched(t)
	const rounds = 30
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 1024, VCPUs: 2}})
		python(t, d, s.ID, fmt.Sprintf(canaries, 200))
		goesOn(t, d, s.ID)
		for range rounds {
			child := forksOf(t, d, s.ID, 1)[0]
			python(t, d, child, `open("/workspace/filler/mine", "w").write("mine")`)
			paths := []string{"/workspace/filler"}
			merged := must(d.Client.Merge(t.Context(), s.ID, sandbox.MergeRequest{Winner: child, Kind: sandbox.MergeFiles, Paths: paths}))(t)
			if !merged.Merged || len(merged.Applied) != 1 {
				t.Errorf("merged %+v", merged)
			}
			if diff := must(d.Client.Diff(t.Context(), child, sandbox.DiffRequest{Against: s.ID, Paths: paths}))(t); len(diff.Changes) != 0 {
				t.Errorf("what was merged differs: %+v", diff)
			}
			python(t, d, s.ID, `os.remove("/workspace/filler/mine")`)
			for _, id := range []string{child, s.ID} {
				goesOn(t, d, id)
			}
			must(d.Client.Kill(t.Context(), child))(t)
		}
		if n := frozenMiB(t, d, s.ID); n < rounds*200 {
			t.Errorf("it has gone on %d times before %d MiB were written", rounds, n)
		}
	})
}
