// Package wire reads and writes the frames of microsandbox's guest protocol, generation 7.
//
// A frame is [len u32][id u32][flags u8][CBOR], in network byte order; len counts the bytes
// after it. The CBOR is a map {v, t, p}: the generation, the type, and the CBOR of the
// payload as a byte string. All input comes from a client, and is bounded: a frame by
// [MaxFrame], its content by the decoder's options.
package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/fxamacker/cbor/v2"
)

const (
	// Generation is the newest generation of the protocol that is fully served.
	Generation = 7
	// MaxFrame bounds a frame's len, in bytes.
	MaxFrame = 4 << 20
	// MaxData bounds the data in one frame that is sent, in bytes.
	MaxData = 1 << 20
	// headLength is the length of a frame's header, without len itself.
	headLength = 5
	// maxType bounds the name of a type, in bytes.
	maxType = 64
)

// The flags of a frame.
const (
	FlagTerminal = 1 // the last frame of its id
	FlagStart    = 2 // begins a session
	FlagShutdown = 4
)

// The ids that a client may use: from MinID to below MaxID. The product's client takes
// other small ranges for an old form of the protocol.
const (
	MinID = 1
	MaxID = 33_554_431
)

// Bounds of a payload. The arrays are a command's arguments and variables.
const (
	maxNesting  = 16
	maxElements = 16 << 10
	maxPairs    = 256
)

// ErrLength is the error for a frame with an impossible length. Nothing after it can be
// read.
var ErrLength = errors.New("the frame has an impossible length")

// Frame is a frame as read, with its payload undecoded.
type Frame struct {
	ID      uint32
	Flags   uint8
	Type    string
	Payload []byte
}

// envelope is the CBOR of a frame.
type envelope struct {
	V uint64 `cbor:"v"`
	T string `cbor:"t"`
	P []byte `cbor:"p"`
}

var decoding = must(cbor.DecOptions{
	DupMapKey: cbor.DupMapKeyEnforcedAPF, MaxNestedLevels: maxNesting, MaxArrayElements: maxElements, MaxMapPairs: maxPairs,
	TagsMd: cbor.TagsForbidden, IntDec: cbor.IntDecConvertSignedOrFail,
}.DecMode())

var encoding = must(cbor.EncOptions{}.EncMode())

func must[T any](v T, err error) T {
	if err != nil {
		panic(err) // the options are constants
	}
	return v
}

// Read reads the next frame. After [ErrLength] and errors of r, nothing more can be read.
// After any other error the next frame can be read, and the returned frame has its id and
// flags.
func Read(r io.Reader) (Frame, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return Frame{}, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n < headLength || n > MaxFrame {
		return Frame{}, ErrLength
	}
	var body bytes.Buffer // grows as data arrives, not to the announced length
	if _, err := io.CopyN(&body, r, int64(n)); err != nil {
		return Frame{}, lost(err)
	}
	data := body.Bytes()
	f := Frame{ID: binary.BigEndian.Uint32(data), Flags: data[4]}
	var e envelope
	if err := decoding.Unmarshal(data[headLength:], &e); err != nil {
		return f, Malformed{err}
	}
	if len(e.T) > maxType {
		return f, Malformed{fmt.Errorf("the type has %d bytes", len(e.T))}
	}
	f.Type, f.Payload = e.T, e.P
	return f, nil
}

func lost(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Malformed is the error for a frame with invalid content. The frames after it can be read.
type Malformed struct{ err error }

// Error describes the error.
func (m Malformed) Error() string { return "the message is malformed: " + m.err.Error() }

// Unwrap returns the cause.
func (m Malformed) Unwrap() error { return m.err }

// Decode decodes the payload of a frame into v. Unknown keys are ignored, as the protocol
// requires.
func (f *Frame) Decode(v any) error {
	if err := decoding.Unmarshal(f.Payload, v); err != nil {
		return Malformed{err}
	}
	return nil
}

// Append appends a frame to dst. A nil payload is encoded as an empty map. If the frame is
// too long, the error is [ErrLength] and dst is returned unchanged.
func Append(dst []byte, id uint32, flags uint8, kind string, payload any) ([]byte, error) {
	if payload == nil {
		payload = struct{}{}
	}
	p, err := encoding.Marshal(payload)
	if err != nil {
		return dst, fmt.Errorf("encode %s: %w", kind, err)
	}
	body, err := encoding.Marshal(envelope{Generation, kind, p})
	if err != nil {
		return dst, fmt.Errorf("encode %s: %w", kind, err)
	}
	if headLength+len(body) > MaxFrame {
		return dst, ErrLength
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(headLength+len(body)))
	dst = binary.BigEndian.AppendUint32(dst, id)
	return append(append(dst, flags), body...), nil
}

// Hello returns what a server sends first: the range of ids, and the message that the guest
// is ready.
func Hello(ready Ready) ([]byte, error) {
	dst := binary.BigEndian.AppendUint32(nil, MinID)
	dst = binary.BigEndian.AppendUint32(dst, MaxID)
	return Append(dst, 0, 0, TypeReady, ready)
}
