package builds

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxBuildLog bounds the output of a build that is kept on disk. Beyond it, the
	// titles of steps are still kept, up to a further bound.
	maxBuildLog   = 16 << 20
	maxBuildSteps = 1 << 20
)

// buildLog keeps the events of a build on disk, one line of JSON each, and wakes
// followers for new ones. It is safe for concurrent use.
type buildLog struct {
	mu      sync.Mutex
	file    *os.File      // guarded by mu; nil when the log has ended or cannot be kept
	size    int64         // guarded by mu
	full    bool          // guarded by mu
	ended   bool          // guarded by mu
	changed chan struct{} // guarded by mu; closed at the next event
}

func (x *Builder) buildLogFile(id string) string {
	return filepath.Join(x.cfg.Dir, id+".log")
}

func (x *Builder) newBuildLog(id string) (*buildLog, error) {
	if err := os.MkdirAll(x.cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("keep a build's log: %w", err)
	}
	f, err := os.OpenFile(x.buildLogFile(id), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("keep a build's log: %w", err)
	}
	return &buildLog{file: f, changed: make(chan struct{})}, nil
}

// add keeps an event. If the log cannot be written, it ends there and the build
// continues.
func (l *buildLog) add(e sandbox.BuildEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return
	}
	if l.size > maxBuildLog && e.Template == nil {
		if e.Log != "" && !l.full {
			l.full, e.Log = true, "… the log is full; what follows is not kept\n"
		} else if e.Log != "" || l.size > maxBuildLog+maxBuildSteps {
			return
		}
	}
	line, err := json.Marshal(e)
	if err == nil {
		_, err = l.file.Write(append(line, '\n'))
	}
	if err != nil {
		_ = l.file.Close()
		l.file = nil
	}
	l.size += int64(len(line)) + 1
	close(l.changed)
	l.changed = make(chan struct{})
}

// end marks the log as complete.
func (l *buildLog) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.ended = true
	if l.file != nil {
		_ = l.file.Close()
		l.file = nil
	}
	close(l.changed)
}

// state returns what to wait for, and whether the log has ended.
func (l *buildLog) state() (changed <-chan struct{}, ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed, l.ended
}

// followLog passes the events of a build to sink, from the first: the kept ones and, if
// live is not nil, new ones until the build has ended.
func (x *Builder) followLog(ctx context.Context, id string, live *buildLog, sink func(sandbox.BuildEvent) error) error {
	f, err := os.Open(x.buildLogFile(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 64<<10)
	var part strings.Builder
	for {
		var changed <-chan struct{}
		ended := true
		if live != nil {
			changed, ended = live.state() // before reading, so that nothing is missed
		}
		if err := passLines(ctx, r, &part, sink); err != nil {
			return err
		}
		if ended {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// passLines passes all complete lines to sink, and keeps the rest in part.
func passLines(ctx context.Context, r *bufio.Reader, part *strings.Builder, sink func(sandbox.BuildEvent) error) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		piece, err := r.ReadString('\n')
		part.WriteString(piece)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var e sandbox.BuildEvent
		if json.Unmarshal([]byte(part.String()), &e) == nil {
			if err := sink(e); err != nil {
				return &call.CallbackError{Err: err}
			}
		}
		part.Reset()
	}
}
