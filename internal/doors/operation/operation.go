// Package operation is the table of the operations of Cove's REST interface.
// Package api makes the server's routes and the OpenAPI description of it, and
// package client its requests, so that a path, a scope or a parameter stands in
// one place.
package operation

import (
	"context"
	"fmt"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// Info is what an operation is, apart from its types.
type Info struct {
	// ID names the operation in the OpenAPI description, such as "get-job".
	ID string
	// Verb is the method of [sandbox.Service] that does it.
	Verb string
	// Method is of HTTP, and Path has names in braces: /v1/jobs/{job}.
	Method, Path string
	// Tag is the group that it belongs to.
	Tag string
	// Scope is what the caller needs; empty is any.
	Scope sandbox.Scope
	// Summary says what it does, in one line.
	Summary string
	// Description says more; empty is what package sandbox says of the verb.
	Description string
	// Status is that of success; 0 is 200, or 204 where there is no answer.
	Status int
	// Location is the path of what is made, without its id; empty is none.
	Location string
	// MaxBody bounds the body, in bytes; 0 is the default of the interface.
	MaxBody int64
	// Repeat says whether requests may be sent again.
	Repeat Repeat
	// Open operations need no key.
	Open bool
}

// Repeat says how requests of an operation may be sent again.
type Repeat int

// How requests may be sent again.
const (
	// RepeatNone is of operations that take no key.
	RepeatNone Repeat = iota
	// RepeatWhole is of operations that have done nothing if they fail.
	RepeatWhole
	// RepeatBackground is of commands that run in the background, of which a
	// failure may not tell whether they run.
	RepeatBackground
)

// Op is an operation that takes In, as path, query and Body, and answers with
// Out.
type Op[In, Out any] struct {
	Info
	// Do does it; nil is of operations that package api does in a way of its own.
	Do func(ctx context.Context, s sandbox.Service, in *In) (*Out, error)
}

// Empty is what operations answer that have nothing to tell.
type Empty = struct{}

// Stream is an operation that takes In and answers with lines of Line until one
// that is the last.
type Stream[In, Line any] struct {
	Info
	// Do passes lines to send, the final one too.
	Do func(ctx context.Context, s sandbox.Service, in *In, send func(Line) error) error
}

// op is an operation that do does.
func op[In, Out any](info Info, do func(context.Context, sandbox.Service, *In) (*Out, error)) Op[In, Out] {
	return Op[In, Out]{info, do}
}

// streamed is an operation whose lines do passes to send.
func streamed[In, Line any](info Info, do func(ctx context.Context, s sandbox.Service, in *In, send func(Line) error) error) Stream[In, Line] {
	return Stream[In, Line]{info, do}
}

// about describes an operation in short. The route is a method and a path.
func about(route, id, tag string, scope sandbox.Scope, summary string) Info {
	method, path, _ := strings.Cut(route, " ")
	verb := ""
	for word := range strings.SplitSeq(id, "-") {
		verb += strings.ToUpper(word[:1]) + word[1:]
	}
	return Info{ID: id, Verb: verb, Method: method, Path: path, Tag: tag, Scope: scope, Summary: summary}
}

// does names the verb, where the id is other words.
func (i Info) does(verb string) Info {
	i.Verb = verb
	return i
}

// says adds a description.
func (i Info) says(format string, args ...any) Info {
	i.Description = fmt.Sprintf(format, args...)
	return i
}

// accepted says that success is 202, and where what is begun will be.
func (i Info) accepted(location string) Info {
	i.Status, i.Location = 202, location
	return i
}

// created says that success is 201, and where what is made will be.
func (i Info) created(location string) Info {
	i.Status, i.Location = 201, location
	return i
}

// upTo bounds the body, in bytes.
func (i Info) upTo(size int64) Info {
	i.MaxBody = size
	return i
}

// repeatable says that requests may be sent again.
func (i Info) repeatable(how Repeat) Info {
	i.Repeat = how
	return i
}
