package checkpoints

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// fingerprint returns what a sandbox looks like to a program, without what must differ:
// process ids, times and random numbers.
const fingerprint = `
exec 2>&1
echo host: $(hostname) $(cat /proc/sys/kernel/hostname /etc/hostname); cat /etc/hosts
echo user: $(id); echo directory: $(pwd); env | sort
echo limits:; ulimit -a; ulimit -Ha; nproc; grep MemTotal /proc/meminfo; df -k --output=target,size | sort; umask
echo files:; ls -lan --time-style=+ /proc/self/fd | wc -l
find / -xdev \( -path /proc -o -path /sys -o -path /usr -o -path /run/cove \) -prune -o -printf '%p %y %m %U:%G %s %n %l\n' | sed '/ d /s/ [0-9]* [0-9]* $//' | sort
find /dev /run /tmp /var/tmp /dev/shm /home /workspace -printf '%p %y %m %U:%G\n' | sort
echo processes:; ps -eo user,args --no-headers | grep -v 'ps -eo\|grep\|sort\|^[^ ]* *\(ba\)\?sh' | sort
echo kernel:; uname -a; cat /proc/version /proc/mounts /proc/cmdline; cat /proc/self/cgroup; cat /proc/self/status | grep 'Cap\|NoNewPrivs\|Seccomp\|Umask\|Sig'
echo network:; cat /proc/net/dev | cut -d: -f1; cat /proc/net/route
`

// secrets are numbers that two sandboxes must not have in common, one a line.
const secrets = `
od -An -N16 -tx1 /dev/urandom; od -An -N16 -tx1 /dev/random; mktemp -u; bash -c 'echo $RANDOM-$RANDOM-$RANDOM'
cat /proc/sys/kernel/random/uuid /proc/sys/kernel/random/boot_id /etc/machine-id /var/lib/dbus/machine-id /etc/ssh/ssh_host_*_key.pub 2>/dev/null
node -e 'console.log(Math.random()); console.log(require("crypto").randomUUID())'
python3 -c '
import os, ctypes, struct
print(os.getrandom(16).hex()); print(hash("x")); print(os.urandom(8).hex())
vector = struct.iter_unpack("QQ", open("/proc/self/auxv", "rb").read())
print([ctypes.string_at(v, 16).hex() for k, v in vector if k == 25])'
`

// fromPool makes a sandbox and reports whether it continues from a checkpoint
// of its template.
func fromPool(t *testing.T, d *covetest.Daemon, req sandbox.CreateRequest) (*sandbox.Sandbox, bool) {
	t.Helper()
	s := d.Create(t, req)
	log, err := os.ReadFile(filepath.Join(d.StateDir, "engine", "cells", s.ID, "cell.log"))
	if err != nil {
		t.Fatal(err)
	}
	return s, strings.Contains(string(log), "sandbox restored")
}

// A sandbox from the pool cannot be distinguished from one that has just booted, and shares
// nothing with others from the pool. In "make test", TestCheckpoints of package cells (Warm),
// and TestRenewMachineID, TestRenewHostKeys and TestCodeReseed of package agent, stand for it.
func TestMoreWarmIsAsCold(t *testing.T) {
	covetest.Own(t, func(t *testing.T, warm *covetest.Daemon) {
		info, err := os.Stat(warm.StateDir)
		if err != nil {
			t.Fatal(err)
		}
		opts := covetest.Options{Args: []string{"--warm=0"}}
		if uid := info.Sys().(*syscall.Stat_t).Uid; int(uid) != os.Geteuid() {
			opts.UID = uid
		}
		cold := covetest.Start(t, opts)
		ready := func() bool {
			s, restored := fromPool(t, warm, sandbox.CreateRequest{})
			if _, err := warm.Client.Kill(t.Context(), s.ID); err != nil {
				t.Fatal(err)
			}
			return restored
		}
		if !covetest.Eventually(30*time.Second, ready) {
			t.Fatal("no sandbox was made ahead of need")
		}
		seen := map[string]bool{}
		for name, req := range map[string]sandbox.CreateRequest{
			"default": {Name: "same"},
			"other": {
				Name: "other.name", User: "root", WorkDir: "/etc", Env: map[string]string{"A": "1", "PATH": "/usr/bin:/bin", "LANG": "C"},
				Metadata: map[string]string{"k": "v"},
			},
			"no name": {},
		} {
			c, restored := fromPool(t, cold, req)
			if restored {
				t.Fatal("the sandbox to compare with was not booted afresh")
			}
			want := strings.ReplaceAll(cold.Sh(t, c.ID, fingerprint), c.ID, "its-id")
			for i := range 2 {
				w, restored := fromPool(t, warm, req)
				if !restored {
					t.Errorf("%s: sandbox %d was booted afresh", name, i)
				}
				got := strings.ReplaceAll(warm.Sh(t, w.ID, fingerprint), w.ID, "its-id")
				if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); diff != "" {
					t.Errorf("%s: a sandbox from the pool is not as one that was booted (-cold +warm):\n%s", name, diff)
				}
				wantChanges(t, name+": changes", changesOf(t, warm, w.ID, ""), changesOf(t, cold, c.ID, "")...)
				if w.Resources != c.Resources || w.User != c.User || w.WorkDir != c.WorkDir || len(w.Unenforced) != len(c.Unenforced) {
					t.Errorf("%s: the record of a warm one is %+v, of a cold one %+v", name, w, c)
				}
				for line := range strings.Lines(warm.Sh(t, w.ID, secrets)) {
					if seen[line] {
						t.Errorf("%s: two sandboxes have in common: %s", name, line)
					}
					seen[line] = true
				}
				if _, err := warm.Client.Kill(t.Context(), w.ID); err != nil {
					t.Fatal(err)
				}
			}
		}
		if len(seen) < 6*11 {
			t.Errorf("only %d numbers were compared", len(seen))
		}
	})
}
