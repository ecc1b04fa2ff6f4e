package miosa

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"

	"github.com/cove-sh/cove/internal/doors/dialect"
)

// session is the state of one MCP session. A nil session, for protocols without sessions,
// has no state.
type session struct {
	mu       sync.Mutex
	sandbox  string            // the active sandbox, or ""; guarded by mu
	computer string            // likewise; guarded by mu
	jobs     map[string]jobRef // guarded by mu
	order    []string          // job ids, oldest first; guarded by mu
}

// jobRef is what a session remembers about a job.
type jobRef struct{ sandbox, name, command, started string }

// maxJobs bounds the jobs that a session remembers; older ones are found through their
// sandbox.
const maxJobs = 1000

type sessionKey struct{}

func sessionOf(c *dialect.Call) (*session, error) {
	s := c.Session()
	if s == nil {
		return nil, nil
	}
	v, err := s.Value(sessionKey{}, func() (any, func(context.Context), error) {
		return &session{jobs: make(map[string]jobRef)}, nil, nil // sandboxes outlive the session
	})
	if err != nil {
		return nil, err
	}
	return v.(*session), nil
}

// useSandbox makes a sandbox the active one.
func (s *session) useSandbox(id string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sandbox = id
}

// useComputer makes a computer the active one.
func (s *session) useComputer(id string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.computer = id
}

// gone forgets a sandbox or computer that has ended.
func (s *session) gone(id string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sandbox == id {
		s.sandbox = ""
	}
	if s.computer == id {
		s.computer = ""
	}
}

// active returns the active sandbox and computer, each "" if there is none.
func (s *session) active() (sandbox, computer string) {
	if s == nil {
		return "", ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sandbox, s.computer
}

// started remembers a job.
func (s *session) started(job string, ref jobRef) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.order) == maxJobs {
		delete(s.jobs, s.order[0])
		s.order = s.order[1:]
	}
	s.jobs[job] = ref
	s.order = append(s.order, job)
}

// job returns what the session remembers about a job.
func (s *session) job(id string) (jobRef, bool) {
	if s == nil {
		return jobRef{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ref, ok := s.jobs[id]
	return ref, ok
}

// sandbox returns the sandbox to work on: the named one, or the active one.
func (c *call) sandbox(named string) (string, error) {
	if named != "" {
		return named, nil
	}
	if active, _ := c.session.active(); active != "" {
		return active, nil
	}
	return "", c.noneActive("sandbox")
}

// computer returns the computer to work on.
func (c *call) computer(named string) (string, error) {
	if named != "" {
		return named, nil
	}
	if _, active := c.session.active(); active != "" {
		return active, nil
	}
	return "", c.noneActive("computer")
}

func (c *call) noneActive(kind string) error {
	if c.session == nil {
		return &missing{kind + "_id is required: this connection keeps no session, so there is no active " + kind}
	}
	return &missing{kind + "_id is required: this session has no active " + kind + "; " + kind + "_create makes one"}
}

func newRequestID() string { return "req_" + strings.ToLower(rand.Text()) }
