// Package operation is the table of the operations of Cove's REST interface.
// Package rest makes the server's routes and the OpenAPI description from it, and
// package client its requests, so each path, scope and parameter is defined in one
// place.
package operation

import (
	"context"
	"fmt"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// Info describes an operation, except for its types.
type Info struct {
	// ID names the operation in the OpenAPI description, such as "get-job".
	ID string
	// Verb is the method of [sandbox.Service] that performs it.
	Verb string
	// Method is the HTTP method, and Path has names in braces: /v1/jobs/{job}.
	Method, Path string
	// Tag is the group that the operation belongs to.
	Tag string
	// Scope is the scope that the caller needs; empty is any.
	Scope sandbox.Scope
	// Summary says what it does, in one line.
	Summary string
	// Description says more; empty is the comment on the verb in package sandbox.
	Description string
	// Status is the HTTP status of success; 0 is 200, or 204 if the answer is empty.
	Status int
	// Location is the path of what the operation makes, without its id; empty is none.
	Location string
	// MaxBody bounds the body, in bytes; 0 is the default of the interface.
	MaxBody int64
	// Repeat says whether requests may be sent again.
	Repeat Repeat
	// Open says that the operation needs no key.
	Open bool
}

// Repeat says how requests of an operation may be sent again.
type Repeat int

// How requests may be sent again.
const (
	// RepeatNone: requests take no idempotency key.
	RepeatNone Repeat = iota
	// RepeatWhole: an operation that fails has changed nothing.
	RepeatWhole
	// RepeatBackground: only commands in the background are repeatable, and one that
	// failed may be running.
	RepeatBackground
)

// Op is an operation that takes In, as path, query and Body, and answers with
// Out.
type Op[In, Out any] struct {
	Info
	// Do performs the operation; nil if package rest handles it separately.
	Do func(ctx context.Context, s sandbox.Service, in *In) (*Out, error)
}

// Empty is the answer of operations that return nothing.
type Empty = struct{}

// Stream is an operation that takes In and answers with a stream of lines, the last of
// which has an [End].
type Stream[In, Line any] struct {
	Info
	// Do passes lines to send, including the final one.
	Do func(ctx context.Context, s sandbox.Service, in *In, send func(Line) error) error
}

// op makes an operation that do performs.
func op[In, Out any](info Info, do func(context.Context, sandbox.Service, *In) (*Out, error)) Op[In, Out] {
	return Op[In, Out]{info, do}
}

// streamed makes an operation whose lines do passes to send.
func streamed[In, Line any](info Info, do func(ctx context.Context, s sandbox.Service, in *In, send func(Line) error) error) Stream[In, Line] {
	return Stream[In, Line]{info, do}
}

// about describes an operation. The route is a method and a path; the verb is the id in
// camel case.
func about(route, id, tag string, scope sandbox.Scope, summary string) Info {
	method, path, _ := strings.Cut(route, " ")
	verb := ""
	for word := range strings.SplitSeq(id, "-") {
		verb += strings.ToUpper(word[:1]) + word[1:]
	}
	return Info{ID: id, Verb: verb, Method: method, Path: path, Tag: tag, Scope: scope, Summary: summary}
}

// does sets the verb, if the id does not give its name.
func (i Info) does(verb string) Info {
	i.Verb = verb
	return i
}

// says sets the description.
func (i Info) says(format string, args ...any) Info {
	i.Description = fmt.Sprintf(format, args...)
	return i
}

// accepted sets the status of success to 202, and the location of what has begun.
func (i Info) accepted(location string) Info {
	i.Status, i.Location = 202, location
	return i
}

// created sets the status of success to 201, and the location of what is made.
func (i Info) created(location string) Info {
	i.Status, i.Location = 201, location
	return i
}

// upTo bounds the body, in bytes.
func (i Info) upTo(size int64) Info {
	i.MaxBody = size
	return i
}

// repeatable sets how requests may be sent again.
func (i Info) repeatable(how Repeat) Info {
	i.Repeat = how
	return i
}
