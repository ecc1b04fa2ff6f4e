package agent

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/internal/testing/needs"
)

// crowd is a group of made-up processes. Every 20 ms, step says what they do.
type crowd struct {
	mu      sync.Mutex
	session map[int]int // by process
	next    int
	limit   int
	frozen  bool
	refused int64
	thawed  int // how often
}

const crowdTick = 20 * time.Millisecond

func newCrowd(limit int) *crowd { return &crowd{session: map[int]int{}, next: 100, limit: limit} }

// fork starts a process in session sid, or in its own if that is 0.
func (c *crowd) fork(sid int) {
	if c.frozen || len(c.session) >= c.limit {
		c.refused++
		return
	}
	c.next++
	if sid == 0 {
		sid = c.next
	}
	c.session[c.next] = sid
}

// renew replaces all processes of session sid.
func (c *crowd) renew(sid int) {
	n := 0
	for pid, got := range c.session {
		if got == sid {
			delete(c.session, pid)
			n++
		}
	}
	for range n {
		c.fork(sid)
	}
}

func (c *crowd) count(sid int) (n int) {
	for _, got := range c.session {
		if got == sid {
			n++
		}
	}
	return n
}

func (c *crowd) usage() (current, refused int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(len(c.session)), c.refused, nil
}

func (c *crowd) members() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.session))
}

func (c *crowd) freeze() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frozen = true
	return nil
}

func (c *crowd) thaw() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frozen = false
	c.thawed++
	return nil
}

const (
	bombSession  = 7
	quietSession = 8 // a running job's
)

func TestBombGuard(t *testing.T) {
	for _, tt := range []struct {
		name  string
		start map[int]int // how many processes by session
		step  func(c *crowd, tick int)
		want  string // sessions that had processes killed; "own": such of their own
	}{
		{
			"bomb", map[int]int{bombSession: 1, quietSession: 5},
			func(c *crowd, _ int) {
				alive := c.count(bombSession)
				c.renew(bombSession)
				for range alive {
					c.fork(bombSession)
				}
			}, "[7]",
		},
		{
			"sleepers at the limit, one of which tries to fork", map[int]int{bombSession: 64},
			func(c *crowd, tick int) {
				if tick%25 == 0 {
					c.fork(bombSession)
				}
			}, "[]",
		},
		{
			"bomb that does nothing but fork", map[int]int{bombSession: 1, quietSession: 20},
			func(c *crowd, _ int) {
				for range c.count(bombSession) {
					c.fork(bombSession)
				}
			}, "[7]",
		},
		{
			"sleepers that began with a rush", map[int]int{bombSession: 10},
			func(c *crowd, tick int) {
				for range 1000 {
					if tick == 30 {
						c.fork(bombSession)
					}
				}
			}, "[]",
		},
		{
			"workers that are never refused", map[int]int{bombSession: 63},
			func(c *crowd, _ int) { c.renew(bombSession) }, "[]",
		},
		{
			"workers that are refused now and then", map[int]int{bombSession: 63},
			func(c *crowd, tick int) {
				c.renew(bombSession)
				if tick%40 == 0 {
					c.fork(bombSession)
					c.fork(bombSession)
				}
			}, "[]",
		},
		{
			"few that are refused beside many that are old", map[int]int{bombSession: 56, quietSession: 8},
			func(c *crowd, tick int) {
				c.renew(quietSession)
				if tick%25 == 0 {
					c.fork(quietSession)
				}
			}, "[]",
		},
		{
			"bomb whose processes leave their session", map[int]int{quietSession: 5, 9: 1},
			func(c *crowd, _ int) {
				for pid, sid := range c.session {
					if pid == sid && !c.frozen {
						delete(c.session, pid)
					}
				}
				for range 64 {
					c.fork(0)
				}
			}, "[9 own]", // 9 goes with what comes back
		},
		{
			"bomb with a sleeping seed in a session of its own", map[int]int{quietSession: 5, 9: 1},
			func(c *crowd, _ int) {
				if c.count(9) == 0 {
					c.renew(bombSession)
					return
				}
				c.renew(bombSession)
				for range 64 {
					c.fork(bombSession)
				}
			}, "[7 9]",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCrowd(64)
				for sid, n := range tt.start {
					for range n {
						c.fork(sid)
					}
				}
				killed := map[string]bool{}
				g := &bombGuard{
					group: func() processGroup { return c },
					session: func(pid int) int {
						c.mu.Lock()
						defer c.mu.Unlock()
						return c.session[pid]
					},
					isJob: func(sid int) bool { return sid == quietSession },
					kill: func(pid, sid int) {
						c.mu.Lock()
						defer c.mu.Unlock()
						if pid < 0 { // sessions here have no groups
							return
						}
						if pid == sid {
							killed["own"] = true
						} else {
							killed[fmt.Sprint(sid)] = true
						}
						delete(c.session, pid)
					},
					own: 1,
					log: slog.New(slog.NewTextHandler(t.Output(), nil)),
				}
				g.start(func() bool { return true }, g.check)
				g.setLimit(64)
				for tick := range int(20 * time.Second / crowdTick) {
					time.Sleep(crowdTick)
					c.mu.Lock()
					tt.step(c, tick)
					c.mu.Unlock()
				}
				g.close()
				if got := fmt.Sprint(slices.Sorted(maps.Keys(killed))); got != tt.want {
					t.Errorf("killed processes of the sessions %s, want %s", got, tt.want)
				}
				if c.frozen || (c.thawed > 0) != (tt.want != "[]") {
					t.Errorf("frozen %v, thawed %d times", c.frozen, c.thawed)
				}
			})
		})
	}
}

// startLimited starts an agent as PID 1, with a limit on the processes of its jobs. It
// returns the cgroup that they share.
func startLimited(t *testing.T, limit int64) (*server, *pidLimiter) {
	t.Helper()
	_, dir := pidsCgroupDir(t)
	s, _ := startInitIn(t, dir)
	res, err := s.Configure(t.Context(), connect.NewRequest(&agentv1.ConfigureRequest{MaxPids: &limit}))
	if err != nil || len(res.Msg.GetUnenforced()) > 0 {
		t.Fatalf("configure: %v, %v", res, err)
	}
	return s, &pidLimiter{dir: dir + "/" + jobsCgroup, starts: make(chan func())}
}

func TestForkBomb(t *testing.T) {
	// A process exits once it has started others, and sometimes if it could not.
	const bomb = `perl -e 'A: while (1) { srand; my $k; for (1 .. 8) { my $p = fork; next A if defined $p && !$p; ` +
		`$k++ if $p; select undef, undef, undef, 0.002 } exit if $k || rand() < 0.3 }'`
	leaving := strings.Replace(bomb, "srand", "syscall 112; srand", 1) // setsid
	for _, tt := range []struct {
		name string
		argv []string
		ends bool // with the bomb, of itself it does not
		more bool // "make test" has one bomb that ends with its job, and one that does not; TestBombGuard has those that leave their session
	}{
		{"beside a main process", []string{"sh", "-c", bomb + "& sleep 300"}, true, true},
		{"left behind", []string{"sh", "-c", bomb + " &"}, false, false},
		{"that tries again", []string{"bash", "-c", "bomb() { bomb | bomb & }; bomb; sleep 300"}, true, true},
		{"that never ends", []string{"perl", "-e", "fork while 1"}, true, false},
		{"in sessions of their own", []string{"sh", "-c", leaving + "& sleep 300"}, false, true},
	} {
		if tt.more && !needs.More() {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			s, group := startLimited(t, 40)
			idle := s.background(t, &agentv1.ExecRequest{Argv: []string{"sleep", "300"}})
			job := s.background(t, &agentv1.ExecRequest{Argv: tt.argv})
			if tt.ends {
				if j := s.wait(t, job.GetJobId()); j.GetEndCause() != agentv1.EndCause_END_CAUSE_PROCESS_LIMIT || j.GetSignal() != 9 {
					t.Errorf("the job: %v", j)
				}
			}
			eventually(t, "the bomb was there and is gone", func() bool {
				current, refused, err := group.usage()
				return err == nil && refused > 0 && current <= 4 // idle, job and its child
			})
			eventually(t, "the sandbox is usable", func() bool {
				r, err := s.tryExec(t, &agentv1.ExecRequest{Shell: "echo alive"})
				return err == nil && r.stdout.String() == "alive\n"
			})
			res, err := s.GetJob(t.Context(), connect.NewRequest(&agentv1.GetJobRequest{JobId: idle.GetJobId()}))
			if err != nil || res.Msg.GetJob().GetState() != agentv1.JobState_JOB_STATE_RUNNING {
				t.Errorf("the job that did nothing: %v, %v", res, err)
			}
		})
	}
}

// TestCrowdIsNoBomb fills the limit with processes that are not a bomb. "make test" has one
// of the crowds.
func TestCrowdIsNoBomb(t *testing.T) {
	s, _ := startLimited(t, 40)
	for _, tt := range []struct{ name, line string }{
		{"sleepers", `perl -e 'for (1..50) { my $p = fork; if (!defined $p) { sleep 1 } elsif (!$p) { sleep 3; exit } } 1 while wait > 0; print "done\n"'`},
		{"workers", "seq 60 | xargs -P 60 -I{} sleep 0.3; echo done"},
		{"shells", "for k in $(seq 10); do (for i in $(seq 45); do sleep 0.1 & done; wait); done; echo done"},
	} {
		if tt.name != "workers" && !needs.More() {
			continue
		}
		r := s.exec(t, &agentv1.ExecRequest{Argv: []string{"sh", "-c", tt.line}})
		if r.last.GetExitCode() != 0 || r.stdout.String() != "done\n" {
			t.Errorf("%s: %v, stdout %q, stderr %q", tt.name, r.last, r.stdout.String(), r.stderr.String())
		}
	}
}

func FuzzRefusedForks(f *testing.F) {
	f.Add("max 12\n")
	f.Add("max -1\nmax x")
	f.Fuzz(func(t *testing.T, events string) {
		if n := refusedForks(events); n < -1 {
			t.Errorf("refusedForks(%q) = %d", events, n)
		}
	})
}
