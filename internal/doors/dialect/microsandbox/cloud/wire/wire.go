// Package wire reads and writes the frames of microsandbox's guest protocol, generation 7.
//
// A frame is [len u32][id u32][flags u8][CBOR], with numbers in network order; len counts
// what follows it. The CBOR is a map {v, t, p}: the generation, the type, and as a byte
// string the CBOR of the payload. All that is read comes from a client, and is bounded:
// a frame by [MaxFrame], what is in it by the options of the decoder.
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
	// Generation is the newest generation of the protocol that is served whole.
	Generation = 7
	// MaxFrame bounds len of a frame, in bytes.
	MaxFrame = 4 << 20
	// MaxData bounds the data that is put into one frame, in bytes.
	MaxData = 1 << 20
	// headLength is the length of what stands before the CBOR, without len itself.
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

// The range of ids that a client may use: from MinID to below MaxID. The product's
// client takes other small ranges for an old form of the protocol.
const (
	MinID = 1
	MaxID = 33_554_431
)

// The bounds of a payload. Arrays are arguments and variables of a command.
const (
	maxNesting  = 16
	maxElements = 16 << 10
	maxPairs    = 256
)

// ErrLength is the error for a frame whose length is impossible: what follows cannot be
// read any more.
var ErrLength = errors.New("the frame has an impossible length")

// Frame is a frame as it was read, its payload undecoded.
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

// Read reads the next frame. After [ErrLength] and errors of r nothing more can be read;
// after any other the next frame can, and the frame has its id and flags.
func Read(r io.Reader) (Frame, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return Frame{}, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n < headLength || n > MaxFrame {
		return Frame{}, ErrLength
	}
	var body bytes.Buffer // grows as the client sends, whatever it has announced
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

// Malformed is the error for a frame whose content is not what it should be. The frames
// after it can be read.
type Malformed struct{ err error }

// Error says what is wrong.
func (m Malformed) Error() string { return "the message is malformed: " + m.err.Error() }

// Unwrap returns what is wrong.
func (m Malformed) Unwrap() error { return m.err }

// Decode reads the payload of a frame into v. Keys that v does not have are ignored, as
// the protocol says.
func (f *Frame) Decode(v any) error {
	if err := decoding.Unmarshal(f.Payload, v); err != nil {
		return Malformed{err}
	}
	return nil
}

// Append appends a frame to dst. A nil payload is an empty map. The error for a frame
// that is too long is [ErrLength], and dst is then as it was.
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

// Hello is what a server sends first: the range of ids, and that the guest is ready.
func Hello(ready Ready) ([]byte, error) {
	dst := binary.BigEndian.AppendUint32(nil, MinID)
	dst = binary.BigEndian.AppendUint32(dst, MaxID)
	return Append(dst, 0, 0, TypeReady, ready)
}
