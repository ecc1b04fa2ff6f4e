package agent

import (
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
)

const (
	// bombIdle is the time between checks while at least half of the processes are
	// free, and bombPoll otherwise.
	bombIdle = 500 * time.Millisecond
	bombPoll = 100 * time.Millisecond
	// bombChecks is in how many checks in a row, and bombChurn for how long, a large part
	// of the processes must be new. Both, since a bomb slows the guard down too.
	bombChecks = 2
	bombChurn  = 250 * time.Millisecond
	// bombSample is the number of new processes whose session a check looks up. With
	// hundreds of processes, a system call takes a tenth of a second.
	bombSample = 8
	// bombWindow is how long refused forks are counted, and bombRefused how many are too
	// many. It starts bombRush after the limit was reached: a program that starts too
	// many processes at once may be refused many.
	bombRush    = time.Second
	bombWindow  = 5 * time.Second
	bombRefused = 30
	// bombAgain is how soon after a bomb another one counts as what is left of it.
	bombAgain = 10 * time.Second
	// bombPatience is how long killed processes may take to end.
	bombPatience = 2 * time.Second
)

// bombGuard ends fork bombs. Being at the limit is allowed. A bomb stays at the limit
// and either constantly starts new processes while more and more forks are refused, or
// has many forks refused for seconds, as happens to a program that does not give up. A
// pool of workers, or a build that is refused a process now and then, does neither.
//
// The first time, the sessions with most of the new processes are killed, or every
// session with a new process if none stands out. If that did not help (processes of a
// bomb may leave their session, or sleep), everything is killed except the sessions of
// running jobs without new processes. No process can start meanwhile, so none escapes.
type bombGuard struct {
	monitor
	group   func() processGroup
	session func(pid int) int      // 0: the process is gone
	isJob   func(session int) bool // whether a running job or interpreter has the session
	kill    func(pid, session int) // kills pid, or group -pid, and records why in its job
	own     int                    // the agent's session
	log     *slog.Logger

	// What earlier checks found; only run uses it.
	seen    map[int]bool  // processes at the last check
	refused int64         // forks refused until then
	at      time.Time     // when that was
	checks  int           // in how many checks in a row many processes were new
	churn   time.Duration // for how long
	last    time.Time     // when a bomb was ended

	// While at the limit.
	reached time.Time    // since when; zero: not at the limit
	since   time.Time    // start of the window; zero: it has not started
	before  int64        // forks refused until then
	fresh   map[int]bool // processes that started in it, or after the limit was reached
	tally   map[int]int  // number of those by session, of a sample
	total   int          // sum of tally
}

// processGroup are the processes that the limit applies to.
type processGroup interface {
	// usage returns the number of processes and threads, and how many forks have been
	// refused so far, -1 if that is not known.
	usage() (current, refused int64, err error)
	// members lists the processes.
	members() []int
	// freeze makes every fork fail until thaw.
	freeze() error
	thaw() error
}

func newBombGuard(a *Agent) *bombGuard {
	g := &bombGuard{
		group: func() processGroup {
			a.mu.RLock()
			defer a.mu.RUnlock()
			return a.pids
		},
		session: func(pid int) int {
			sid, err := unix.Getsid(pid)
			if err != nil {
				return 0
			}
			return sid
		},
		isJob: func(session int) bool {
			return a.jobs.bySession(session) != nil || a.code.bySession(session) != nil
		},
		kill: a.killForProcesses,
		log:  a.log,
	}
	g.own = g.session(os.Getpid())
	return g
}

// killForProcesses kills pid, or the group -pid, and records that the job of the session
// ends because of the limit of processes.
func (a *Agent) killForProcesses(pid, session int) {
	if j := a.jobs.bySession(session); j != nil {
		j.blame(agentv1.EndCause_END_CAUSE_PROCESS_LIMIT)
	}
	if p := a.code.bySession(session); p != nil && (pid == p.pid || pid == -p.pid) {
		p.blameFor("the code kept the sandbox at its limit of processes by starting new ones all the time")
	}
	_ = unix.Kill(pid, unix.SIGKILL)
}

// check ends a bomb if there is one and returns when to check again.
func (g *bombGuard) check(limit int64) time.Duration {
	group := g.group()
	current, refused, err := group.usage()
	if err != nil {
		g.log.Debug("read the number of processes", "error", err)
		return bombIdle
	}
	members := group.members()
	if current < limit-limit/10 {
		g.reset(members, refused)
		if current < limit/2 {
			return bombIdle
		}
		return bombPoll
	}
	if g.suspect(members, current, refused) {
		g.end(group)
	}
	return bombPoll
}

// reset forgets earlier checks, since there is room.
func (g *bombGuard) reset(members []int, refused int64) {
	g.seen = make(map[int]bool, len(members))
	for _, pid := range members {
		g.seen[pid] = true
	}
	g.refused, g.checks, g.churn, g.reached, g.at = refused, 0, 0, time.Time{}, time.Now()
}

// suspect compares with earlier checks and reports whether this is a bomb.
func (g *bombGuard) suspect(members []int, current, refused int64) bool {
	now := time.Now()
	first := g.reached.IsZero()
	if first {
		g.reached, g.since = now, time.Time{}
		g.forget()
	}
	started := g.note(members)
	// The first check sees how the limit was reached, which may be in a rush.
	if !first && 3*int64(started) >= current && (refused < 0 || refused > g.refused) {
		g.checks++
		g.churn += now.Sub(g.at)
	} else {
		g.checks, g.churn = 0, 0
	}
	g.refused, g.at = refused, now
	return g.checks >= bombChecks && g.churn >= bombChurn || g.insists(now, refused)
}

// insists reports whether too many forks were refused in the window.
func (g *bombGuard) insists(now time.Time, refused int64) bool {
	switch {
	case now.Sub(g.reached) < bombRush:
		return false
	case g.since.IsZero():
	case now.Sub(g.since) < bombWindow:
		return false
	case refused-g.before >= bombRefused:
		return true
	default:
		g.forget()
	}
	g.since, g.before = now, refused
	return false
}

// forget makes all processes so far count as old ones.
func (g *bombGuard) forget() {
	g.fresh, g.tally, g.total = map[int]bool{}, map[int]int{}, 0
}

// note records members and returns how many are new since the last check.
func (g *bombGuard) note(members []int) (started int) {
	seen := make(map[int]bool, len(members))
	for _, pid := range members {
		seen[pid] = true
		if g.seen[pid] {
			continue
		}
		started++
		g.fresh[pid] = true
		if started > bombSample {
			continue
		}
		if sid := g.session(pid); sid != 0 {
			g.tally[sid]++
			g.total++
		}
	}
	g.seen = seen
	return started
}

// end kills the bomb.
func (g *bombGuard) end(group processGroup) {
	if err := group.freeze(); err != nil {
		g.log.Warn("stop forks", "error", err)
	}
	defer func() {
		if err := group.thaw(); err != nil {
			g.log.Warn("allow forks again", "error", err)
		}
	}()
	members := group.members()
	g.note(members)
	if g.total == 0 { // the bomb is older than the window: suspect all processes
		g.seen = nil
		g.note(members)
	}
	again := !g.last.IsZero() && time.Since(g.last) < bombAgain
	condemned := g.judge(again)
	for sid := range g.tally { // first whole groups at once
		if sid != g.own && condemned(0, sid) {
			g.kill(-sid, sid)
		}
	}
	killed := map[int]bool{}
	for end := time.Now().Add(bombPatience); time.Now().Before(end); {
		left := false
		for _, pid := range group.members() {
			sid := g.session(pid)
			if sid == 0 || sid == g.own || !condemned(pid, sid) {
				continue
			}
			g.kill(pid, sid)
			killed[pid], left = true, true
		}
		if !left || !g.pause(bombPoll/10) {
			break
		}
	}
	g.log.Warn("killed a fork bomb", "processes", len(killed), "again", again)
	g.last = time.Now()
	g.reset(group.members(), g.refused)
}

// judge returns the function that decides which processes are killed.
func (g *bombGuard) judge(again bool) func(pid, session int) bool {
	if again {
		return func(_, sid int) bool { return g.tally[sid] > 0 || !g.isJob(sid) }
	}
	for _, n := range g.tally {
		if 4*n >= g.total {
			return func(_, sid int) bool { return 4*g.tally[sid] >= g.total }
		}
	}
	return func(pid, sid int) bool { return g.fresh[pid] || g.tally[sid] > 0 }
}
