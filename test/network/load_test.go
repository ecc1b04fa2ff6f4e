package network

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// memoryOf returns the most memory that a process has ever had, in MiB.
func memoryOf(t *testing.T, pid int) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")))
			if err != nil {
				t.Fatal(err)
			}
			return kib >> 10
		}
	}
	t.Fatal("the kernel does not tell the memory")
	return 0
}

// cellOf returns the process of a sandbox's cell.
func cellOf(t *testing.T, d *covetest.Daemon, id string) int {
	t.Helper()
	pid, ok := d.Cells()[id]
	if !ok {
		pid, ok = covetest.ProcessOf(id, "cove")
	}
	if !ok {
		t.Fatalf("sandbox %s has no cell", id)
	}
	return pid
}

// TestMoreManyConnections opens a thousand connections from a sandbox at once, ten thousand in
// "make soak". Each still works when all of them are open. In "make test", TestManyConnections
// of package egress stands for it.
func TestMoreManyConnections(t *testing.T) {
	connections, memoryMiB := 1_000, 200
	if needs.Soak() {
		connections, memoryMiB = 10_000, 700
	}
	var inTurn sync.Mutex // this process has the other ends of them all
	own(t, func(t *testing.T, d *covetest.Daemon) {
		inTurn.Lock()
		defer inTurn.Unlock()
		s := d.Create(t, sandbox.CreateRequest{
			Network:   &sandbox.NetworkPolicy{MaxConnections: connections + 100, ConnectionsPerSecond: connections},
			Resources: sandbox.Resources{MemoryMiB: 2048},
		})
		out := works(t, d, s.ID, "ulimit -n 20000; "+python(fmt.Sprintf(`
n, socks, addrs = %d, [], ["203.0.113.10", "203.0.113.11", "198.51.100.10", "198.51.100.11"]
for i in range(n):
    while True:
        try:
            socks.append(socket.create_connection((addrs[i %% 4], 7), 30)); break
        except (ConnectionRefusedError, ConnectionResetError):
            time.sleep(0.05)
for i, c in enumerate(socks): c.sendall(b"%%09d" %% i)
ok = 0
for i, c in enumerate(socks):
    ok += c.recv(9) == b"%%09d" %% i
print(ok)`, connections)))
		if out != strconv.Itoa(connections) {
			t.Errorf("%s of %d connections work", out, connections)
		}
		mib := memoryOf(t, cellOf(t, d, s.ID))
		t.Logf("the cell had %d MiB at most", mib)
		if mib > memoryMiB {
			t.Errorf("the cell had %d MiB, want at most %d", mib, memoryMiB)
		}
		works(t, d, s.ID, curl("http://example.com/"))
	})
}

// TestMoreManyBytesEachWay sends 200 MB each way, a gigabyte in "make soak". The cell buffers
// little of it, whichever side is slow. In "make test", TestOpen and the tests of package
// intercept stand for it.
func TestMoreManyBytesEachWay(t *testing.T) {
	size := 200 << 20
	if needs.Soak() {
		size = 1 << 30
	}
	shared(t, func(t *testing.T, d *covetest.Daemon) {
		id := create(t, d, sandbox.NetworkPolicy{})
		before := memoryOf(t, cellOf(t, d, id))
		if got := works(t, d, id, curl(fmt.Sprintf("http://198.51.100.10/bytes?n=%d", size), "--max-time 580 -o /dev/null -w '%{size_download}'")); got != strconv.Itoa(size) {
			t.Errorf("downloaded %s bytes", got)
		}
		if got := works(t, d, id, fmt.Sprintf("head -c %d /dev/zero | ", size)+curl("http://198.51.100.10/sink", "--max-time 580 -T - -X POST")); got != fmt.Sprintf(`{"bytes": %d}`, size) {
			t.Errorf("uploaded %s", got)
		}
		// A side that does not read for a while.
		works(t, d, id, python(`
s = socket.create_connection(("198.51.100.10", 80)); s.sendall(b"GET /bytes?n=300000000 HTTP/1.1\r\nHost: x\r\n\r\n"); time.sleep(2)
n = 0
while n < 300000000: n += len(s.recv(1 << 20))`))
		after := memoryOf(t, cellOf(t, d, id))
		t.Logf("the cell had %d MiB before and %d MiB at most", before, after)
		if after-before > 64 {
			t.Errorf("the cell had %d MiB before and %d MiB at most", before, after)
		}
	})
}
