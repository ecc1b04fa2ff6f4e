package intercept

import (
	"encoding/binary"
	"errors"
	"net/http"
	"strings"
)

// filterFor returns the filter for the body of a response. It masks every message of a
// WebSocket or of gRPC as a separate text, and any other body as one text.
func filterFor(r *http.Request, res *http.Response, ms *masks) filter {
	grpc := func(h http.Header) bool {
		kind := h.Get("Content-Type")
		return strings.HasPrefix(kind, "application/grpc") && !strings.HasPrefix(kind, "application/grpc-web")
	}
	switch {
	case res.StatusCode == http.StatusSwitchingProtocols:
		return &webSocketFilter{v: newMasker(ms), single: newMasker(ms)}
	case res.ProtoMajor == 2 && res.ContentLength < 0 && grpc(r.Header) && grpc(res.Header):
		return &grpcFilter{v: newMasker(ms)}
	}
	return newMasker(ms)
}

// Opcodes of RFC 6455.
const (
	opContinuation = 0x0
	opText         = 0x1
	opBinary       = 0x2
	opClose        = 0x8
	opPong         = 0xa
)

// maxControl is the longest payload of a control frame, in bytes.
const maxControl = 125

// errFrames is the error for a host that violates the WebSocket protocol.
var errFrames = errors.New("the host sent a frame that is not of the agreed WebSocket protocol")

// webSocketFilter filters the frames of a WebSocket. It masks each message as one text,
// and sends the released parts of a message in new frames, so that control frames between
// its fragments need not wait.
type webSocketFilter struct {
	v *masker // of the current message
	// control is the received part of a control frame, whose values single masks.
	control []byte
	single  *masker

	head []byte // the received part of a header
	left uint64 // missing bytes of the payload, if inside is set
	// inside reports whether the header is complete; final and opcode are taken from it.
	inside, final bool
	opcode        byte
	// open reports whether a message has started; next is the opcode of its next frame for
	// the sandbox.
	open bool
	next byte
	part []byte // reused buffer
}

func (f *webSocketFilter) pass(out, in []byte) ([]byte, error) {
	for len(in) > 0 || f.inside && f.left == 0 {
		if !f.inside {
			f.head, in = append(f.head, in[0]), in[1:]
			if err := f.begin(); err != nil {
				return out, err
			}
			continue
		}
		n := int(min(f.left, uint64(len(in))))
		var err error
		if out, err = f.payload(out, in[:n]); err != nil {
			return out, err
		}
		in = in[n:]
	}
	return out, nil
}

// begin checks a header once it is complete.
func (f *webSocketFilter) begin() error {
	if len(f.head) < 2 {
		return nil
	}
	size, more := uint64(f.head[1]&0x7f), 0
	switch size {
	case 126:
		more = 2
	case 127:
		more = 8
	}
	if len(f.head) < 2+more {
		return nil
	}
	if more > 0 {
		var b [8]byte
		copy(b[8-more:], f.head[2:])
		size = binary.BigEndian.Uint64(b[:])
	}
	final, opcode := f.head[0]&0x80 != 0, f.head[0]&0xf
	reserved, masked := f.head[0]&0x70 != 0, f.head[1]&0x80 != 0
	f.head = f.head[:0]
	switch {
	case reserved || masked || size >= 1<<63:
		return errFrames
	case opcode >= opClose:
		if opcode > opPong || !final || size > maxControl {
			return errFrames
		}
	case opcode == opContinuation && !f.open, opcode != opContinuation && f.open, opcode > opBinary:
		return errFrames
	}
	if opcode == opText || opcode == opBinary {
		f.open, f.next = true, opcode
	}
	f.inside, f.final, f.opcode, f.left = true, final, opcode, size
	return nil
}

// payload filters the next bytes of a frame.
func (f *webSocketFilter) payload(out, in []byte) ([]byte, error) {
	f.left -= uint64(len(in))
	ended := f.left == 0
	f.inside = !ended
	if f.opcode >= opClose {
		return f.controlPayload(out, in, ended)
	}
	part, err := f.v.pass(f.part[:0], in)
	if err != nil {
		return out, err
	}
	f.part = part
	switch {
	case ended && f.final:
		f.part = f.v.end(part)
		out = appendFrame(out, f.next, true, f.part)
		f.open = false
	case len(part) > 0:
		out = appendFrame(out, f.next, false, part)
		f.next = opContinuation
	}
	return out, nil
}

// controlPayload filters the next bytes of a control frame, which is sent as a whole.
func (f *webSocketFilter) controlPayload(out, in []byte, ended bool) ([]byte, error) {
	f.control = append(f.control, in...)
	if !ended {
		return out, nil
	}
	part, err := f.single.pass(nil, f.control)
	if err != nil {
		return out, err
	}
	clear(f.control)
	f.control = f.control[:0]
	return appendFrame(out, f.opcode, true, f.single.end(part)), nil
}

// end drops the rest, which belongs to an incomplete message.
func (f *webSocketFilter) end(out []byte) []byte { return out }

func (f *webSocketFilter) wipe() {
	f.v.wipe()
	f.single.wipe()
	wipe(f.control[:cap(f.control)])
}

// appendFrame appends one frame.
func appendFrame(out []byte, opcode byte, final bool, payload []byte) []byte {
	if final {
		opcode |= 0x80
	}
	switch n := len(payload); {
	case n < 126:
		out = append(out, opcode, byte(n))
	case n < 1<<16:
		out = binary.BigEndian.AppendUint16(append(out, opcode, 126), uint16(n))
	default:
		out = binary.BigEndian.AppendUint64(append(out, opcode, 127), uint64(n))
	}
	return append(out, payload...)
}

// grpcFilter filters the messages of gRPC: a byte of flags, four bytes of length, and
// the message.
type grpcFilter struct {
	v    *masker
	head []byte
	left uint32
}

func (e *grpcFilter) pass(out, in []byte) ([]byte, error) {
	for len(in) > 0 {
		if e.left == 0 {
			e.head, in = append(e.head, in[0]), in[1:]
			if len(e.head) == 5 {
				out = append(out, e.head...)
				e.left, e.head = binary.BigEndian.Uint32(e.head[1:]), e.head[:0]
			}
			continue
		}
		n := int(min(uint64(e.left), uint64(len(in))))
		var err error
		if out, err = e.v.pass(out, in[:n]); err != nil {
			return out, err
		}
		if e.left -= uint32(n); e.left == 0 {
			out = e.v.end(out)
		}
		in = in[n:]
	}
	return out, nil
}

func (e *grpcFilter) end(out []byte) []byte {
	out = append(e.v.end(out), e.head...)
	e.head = nil
	return out
}

func (e *grpcFilter) wipe() { e.v.wipe() }
