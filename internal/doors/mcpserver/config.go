// Package mcpserver serves the dialects over the Model Context Protocol, on
// standard input and output and on Streamable HTTP, in the revisions with
// sessions, up to 2025-11-25, and in the stateless ones since 2026-07-28. It
// gives every tool progress notifications and cancellation that really stops
// the work.
//
// It depends on [sandbox.Service] only. The handler in front of it authenticates
// callers and checks Host and Origin.
package mcpserver

import (
	"log/slog"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

// Config says what to serve.
type Config struct {
	// Service does the work.
	Service sandbox.Service
	// Version is Cove's version, which is sent to clients.
	Version string
	// Log receives log records; nil discards them.
	Log *slog.Logger
	// Dialect is the default dialect; empty is Cove's own.
	Dialect string
	// Toolsets are turned on unless a request chooses others; empty is the dialect's
	// default.
	Toolsets []string
	// Tools are single tools that are turned on in addition. Without Toolsets, only
	// these are on.
	Tools []string
	// ReadOnly leaves only tools that change nothing. No request can override it.
	ReadOnly bool

	// HostChecked means that the handler in front has checked the Host header.
	// Otherwise requests over loopback must name a loopback host.
	HostChecked bool
	// MaxSessions bounds the sessions of all clients, and MaxSessionsPerKey those of
	// one caller. At the bound, the session that was idle longest ends. 0 is 1024 and
	// 256.
	MaxSessions       int
	MaxSessionsPerKey int
	// SessionIdle ends a session without requests; 0 is two hours.
	SessionIdle time.Duration

	// Memory bounds the memory for messages of requests under way; nil is
	// [DefaultMemory].
	Memory *limits.MemoryBudgetConfig

	// Env returns environment variables of the client, if the client has started this
	// server for itself only. Some dialects' products are configured by them. Nil means
	// that there are none.
	Env func(name string) string

	// DetachAfter is how long a call waits for a command before it detaches the
	// command; 0 is the dialect's own, below the 60 s after which clients give up.
	DetachAfter time.Duration

	// TaskAfter is how long a request waits for a call before it is answered with
	// a task, if its client takes tasks; 0 is five seconds.
	TaskAfter time.Duration

	// Content replaces a dialect's tools, prompts and resources, unless it is nil.
	Content Content
}

// Content replaces a dialect, for example with the tools that a conformance suite calls
// by name.
type Content interface {
	// Options changes the options of a server that is about to be made.
	Options(*mcp.ServerOptions)
	// Register adds tools, prompts and resources to a server.
	Register(*mcp.Server)
}

func (c Config) withDefaults() Config {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Env == nil {
		c.Env = func(string) string { return "" }
	}
	if c.MaxSessions == 0 {
		c.MaxSessions = 1024
	}
	if c.MaxSessionsPerKey == 0 {
		c.MaxSessionsPerKey = 256
	}
	if c.SessionIdle == 0 {
		c.SessionIdle = 2 * time.Hour
	}
	if c.TaskAfter == 0 {
		c.TaskAfter = taskAfter
	}
	if c.Memory == nil {
		c.Memory = &DefaultMemory
	}
	return c
}

func (c Config) selection() dialect.Selection {
	return dialect.Selection{Toolsets: c.Toolsets, Tools: c.Tools, ReadOnly: c.ReadOnly}
}

// maxMessage bounds one message of a client: a file of 8 MiB in base64 and its
// envelope.
const maxMessage = 12 << 20

// DefaultMemory bounds the memory for messages unless [Config.Memory] is set: eight of
// the largest messages in all, and four for one caller.
var DefaultMemory = limits.MemoryBudgetConfig{
	Total: 8 * maxMessage, PerCaller: 4 * maxMessage, MaxBody: maxMessage, Wait: 10 * time.Second, ReadTimeout: 5 * time.Minute,
}
