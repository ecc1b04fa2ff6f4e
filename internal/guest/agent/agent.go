package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/agent/kernel"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1/agentv1connect"
)

const (
	// maxMessage is the largest message the agent reads, in bytes.
	maxMessage = 16 << 20
	// chunkBytes is how much data one message of a stream carries at most.
	chunkBytes = 256 << 10
	// closeTimeout is how long Close waits for killed jobs to be gone.
	closeTimeout = 5 * time.Second
)

// Config configures an [Agent]. The zero value is for an agent that is an ordinary
// process, logs nothing and accepts every connection.
type Config struct {
	// Version is what Health reports.
	Version string
	// Log receives what an operator should know; nil discards it.
	Log *slog.Logger
	// Init is set when this process is PID 1 of a sandbox: the agent then reaps
	// all orphans, sets the host name and guards memory and process limits.
	Init bool
	// AllowFrom decides on accept whether a peer may use the agent; nil allows all.
	// A refused connection is closed at once.
	AllowFrom func(net.Addr) bool
}

// Agent serves one sandbox. Its methods are safe for concurrent use.
type Agent struct {
	cfg     Config
	log     *slog.Logger
	started time.Time
	users   *userDB
	jobs    *jobTable
	code    *codeTable
	usage   usageLog
	screens screens
	reaper  *reaper    // nil unless Init
	guard   *guard     // nil unless Init
	bombs   *bombGuard // nil unless Init
	spool   *spooler   // nil unless Init
	written written
	null    *os.File
	root    string // where merges are applied; "/" outside tests

	// How long others may take: the constants of these names, except in tests, in
	// which only the machine may be slow.
	interruptGrace, endGrace, browserWindow time.Duration
	kernelGrace                             time.Duration // [kernel.Config.EndGrace]

	mu       sync.RWMutex
	settings settings    // guarded by mu
	hosted   string      // the host name that is in /etc/hosts; guarded by mu
	pids     *pidLimiter // guarded by mu; nil when processes are not limited

	editMu  sync.Mutex // held during an Edit, so that none overwrites another
	applyMu sync.Mutex // held during an Apply
}

var _ agentv1connect.AgentHandler = (*Agent)(nil)

// New makes an agent, which [Agent.Close] ends with all its jobs.
func New(cfg Config) (*Agent, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		if null, err = emptyInput(); err != nil {
			return nil, fmt.Errorf("open standard input of jobs: %w", err)
		}
	}
	a := &Agent{
		cfg:     cfg,
		log:     cmp.Or(cfg.Log, slog.New(slog.DiscardHandler)),
		started: time.Now(),
		users:   newUserDB("/etc/passwd", "/etc/group"),
		jobs:    newJobTable(),
		code:    newCodeTable(),
		null:    null,
		root:    "/",

		interruptGrace: interruptGrace, endGrace: endGrace, browserWindow: browserWindow,
	}
	if cfg.Init {
		// At every start, not only before the first merge: in a sandbox that boots with
		// the files of a snapshot, no program may see half a merge. This lists the root
		// directory once.
		a.recoverMerge()
		if a.spool, err = newSpooler("/"); err != nil {
			a.log.Warn("long output of jobs is not kept", "error", err)
		}
		a.reaper = newReaper()
		a.guard = newGuard(a)
		a.bombs = newBombGuard(a)
		a.guard.start(a.reaper.hasChildren.Load, a.guard.check)
		a.bombs.start(a.reaper.hasChildren.Load, a.bombs.check)
		a.reaper.onChild = func() {
			notify(a.guard.wake)
			notify(a.bombs.wake)
		}
		go a.reaper.run()
	}
	return a, nil
}

// emptyInput makes a file without content, for a sandbox without /dev/null.
func emptyInput() (*os.File, error) {
	w, r, err := kernel.Pipe(1)
	if err != nil {
		return nil, err
	}
	return r, w.Close()
}

// Handler serves the agent's protocol. It does not compress: the client is on the
// same machine.
func (a *Agent) Handler() http.Handler {
	mux := http.NewServeMux()
	options := []connect.HandlerOption{connect.WithReadMaxBytes(maxMessage), connect.WithCompression("gzip", nil, nil)}
	mux.Handle(agentv1connect.NewAgentHandler(a, options...))
	mux.Handle(agentv1connect.NewDesktopHandler(&desktopServer{a: a}, options...))
	mux.HandleFunc(RelayPath, a.relay)
	return mux
}

// Serve serves connections of l until ctx ends, and then returns nil; jobs go on.
// It closes l.
func (a *Agent) Serve(ctx context.Context, l net.Listener) error {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{
		Handler:           a.Handler(),
		Protocols:         &protocols,
		ReadHeaderTimeout: 30 * time.Second,
		MaxHeaderBytes:    64 << 10,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 4096,
			WriteByteTimeout:     time.Minute,
		},
		ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	err := srv.Serve(&allowListener{Listener: l, allow: a.cfg.AllowFrom})
	if ctx.Err() != nil && errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve agent: %w", err)
}

// Close kills every job with all processes of its session and waits, for a few
// seconds at most, until they are gone. The agent starts no further jobs.
func (a *Agent) Close() error {
	jobs := a.jobs.close()
	if a.guard != nil {
		a.guard.close()
		a.bombs.close()
	}
	for _, j := range jobs {
		j.killAll()
	}
	interpreters := a.code.close()
	a.screens.close()
	if a.cfg.Init {
		_ = unix.Kill(-1, unix.SIGKILL)
	}
	limit, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	starting := a.jobs.settle(limit)
	jobs = a.jobs.close() // with those that were just starting, which their callers have killed
	var err error
	for _, j := range jobs {
		if await(limit, j.done) != nil {
			err = errors.New("jobs are still running")
			break
		}
	}
	for _, j := range jobs {
		j.abandon()
	}
	for _, p := range interpreters {
		if await(limit, p.done) != nil {
			err = errors.New("interpreters are still running")
			break
		}
	}
	a.code.abandon()
	if a.spool != nil {
		a.spool.close()
	}
	if a.reaper != nil {
		a.reaper.close()
	}
	a.mu.Lock()
	if a.pids != nil {
		a.pids.close()
		a.pids = nil
	}
	a.mu.Unlock()
	if starting != nil { // a job that still starts may use it
		return errors.Join(err, errors.New("jobs are still starting"))
	}
	return errors.Join(err, a.null.Close())
}

// Health implements [agentv1connect.AgentHandler].
func (a *Agent) Health(context.Context, *connect.Request[agentv1.HealthRequest]) (*connect.Response[agentv1.HealthResponse], error) {
	return connect.NewResponse(&agentv1.HealthResponse{
		Version:         a.cfg.Version,
		StartedUnixNano: a.started.UnixNano(),
	}), nil
}

// allowListener closes connections from peers that may not use the agent.
type allowListener struct {
	net.Listener
	allow func(net.Addr) bool
}

func (l *allowListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || l.allow == nil || l.allow(c.RemoteAddr()) {
			return c, err
		}
		_ = c.Close()
	}
}
