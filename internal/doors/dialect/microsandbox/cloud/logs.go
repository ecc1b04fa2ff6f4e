package cloud

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// logTime is how long a stream of logs lasts. Clients give up after 30 seconds even if
	// data arrives, and treat an end by the server as clean.
	logTime = 29 * time.Second
	// logQuiet is the interval at which something is written on a silent stream.
	logQuiet = 10 * time.Second
	// maxFollowed bounds how many commands a stream follows at the same time.
	maxFollowed = 64
)

// The sources of a line of a log. Output is that of a terminal.
const (
	sourceOutput = "output"
	sourceSystem = "system"
)

var logSources = []string{string(sandbox.Stdout), string(sandbox.Stderr), sourceOutput, sourceSystem}

// logs streams the past and future output of a sandbox's commands. The source system is
// always empty: Cove's own messages about a sandbox are in its audit record.
func (d *Door) logs(w http.ResponseWriter, r *http.Request, s *sandbox.Sandbox) error {
	wanted := logSources
	for name, values := range r.URL.Query() {
		if name != "sources" || len(values) > 1 {
			return invalid("%.64q: give sources, once", name)
		}
		wanted = strings.Split(values[0], ",")
		for _, source := range wanted {
			if !slices.Contains(logSources, source) {
				return invalid("%.64q is no source; give %s", source, strings.Join(logSources, ", "))
			}
		}
	}
	if s.State != sandbox.StateRunning {
		return sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox is %s; its logs are read while it runs", statusOf(s))
	}
	ctx, cancel := context.WithTimeout(r.Context(), logTime)
	defer cancel()
	l := &logStream{d: d, w: w, sandbox: s.ID, wanted: wanted, cancel: cancel, seen: map[string]bool{}}
	if err := l.run(ctx); err != nil && !l.begun {
		return err
	}
	_ = l.write("event: end\ndata: {}\n\n") // the client may be gone
	return nil
}

// logStream is a stream of logs to a client.
type logStream struct {
	d       *Door
	sandbox string
	wanted  []string
	cancel  context.CancelFunc
	seen    map[string]bool // the commands already followed

	mu    sync.Mutex
	w     http.ResponseWriter // guarded by mu
	begun bool                // the status is sent; guarded by mu until everything has ended
	now   int                 // number of followed commands; guarded by mu
}

// run follows the existing commands, in order, and new ones.
func (l *logStream) run(ctx context.Context) error {
	var followers sync.WaitGroup
	defer followers.Wait()
	defer l.cancel() // on a failure too, so that the followers end
	followers.Go(func() { l.keepAlive(ctx) })
	follow := func(job *sandbox.Job) {
		if l.seen[job.ID] || job.Tag == toolTag || !l.room() {
			return
		}
		l.seen[job.ID] = true
		if job.State != sandbox.JobRunning {
			l.follow(ctx, job)
			return
		}
		followers.Go(func() { l.follow(ctx, job) })
	}
	req := sandbox.FollowEventsRequest{Sandbox: l.sandbox, Kinds: []sandbox.EventKind{sandbox.EventJob, sandbox.EventSandbox}}
	return l.d.cfg.Service.FollowEvents(ctx, req, func(e sandbox.Event) error {
		switch {
		case e.Kind == sandbox.EventBegun:
			if err := l.write(": the log begins\n\n"); err != nil {
				return err
			}
			for job, err := range sandbox.Each(ctx, sandbox.Of(l.sandbox, l.d.cfg.Service.ListJobs)) {
				if err != nil {
					return err
				}
				follow(&job)
			}
		case e.Job != nil:
			follow(e.Job)
		case e.Sandbox != nil && e.Sandbox.State != sandbox.StateRunning:
			return context.Canceled // any call now would resume it
		}
		return nil
	})
}

// room reports whether one more command can be followed, and counts it.
func (l *logStream) room() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now >= maxFollowed {
		return false
	}
	l.now++
	return true
}

// follow streams a command's output to its end.
func (l *logStream) follow(ctx context.Context, job *sandbox.Job) {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.now--
	}()
	var texts [2]clip.Stream
	say := func(i int, text string) error {
		source := string([]sandbox.Stream{sandbox.Stdout, sandbox.Stderr}[i])
		if job.Terminal {
			source = sourceOutput
		}
		at := time.Now()
		if job.State != sandbox.JobRunning { // its output has no times
			at = job.StartedAt
		}
		return l.say(source, at, text)
	}
	_, err := l.d.cfg.Service.Attach(ctx, l.sandbox, job.ID, sandbox.AttachRequest{}, func(e sandbox.JobEvent) error {
		i := 0
		if e.Stream == sandbox.Stderr {
			i = 1
		}
		return say(i, texts[i].Write(e.Offset, e.Data))
	})
	if err != nil {
		return // the command or the client is gone; others report that
	}
	for i := range texts {
		if say(i, texts[i].End()) != nil {
			return
		}
	}
}

// say sends a piece of a log, if it was requested.
func (l *logStream) say(source string, at time.Time, text string) error {
	if text == "" || !slices.Contains(l.wanted, source) {
		return nil
	}
	data, err := json.Marshal(map[string]string{"source": source, "ts": at.UTC().Format(time.RFC3339Nano), "text": text})
	if err != nil {
		return err
	}
	return l.write("event: log\ndata: " + string(data) + "\n\n")
}

func (l *logStream) write(text string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.begun {
		h := l.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no")
		l.begun = true
	}
	if _, err := l.w.Write([]byte(text)); err != nil {
		l.cancel()
		return err
	}
	return http.NewResponseController(l.w).Flush()
}

// keepAlive writes comments, so that neither side thinks the other gone.
func (l *logStream) keepAlive(ctx context.Context) {
	tick := time.NewTicker(logQuiet)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			_ = l.write(": keepalive\n\n") // a client that is gone cancels the context
		}
	}
}
