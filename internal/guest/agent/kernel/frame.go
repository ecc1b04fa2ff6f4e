package kernel

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxRich bounds all representations of one output, and maxText each that is not in
	// base64.
	maxRich = 8 << 20
	maxText = 16 << 10
	// maxFrame bounds a frame from a driver, in bytes: an output in base64, with small
	// texts in which every character is escaped.
	maxFrame = maxRich*4/3 + 6*maxText*maxMIMETypes
	// maxErrorText bounds each part of an error.
	maxErrorText = 256 << 10
	maxMIMETypes = 64
	maxMIMEName  = 255
)

func frame(data []byte) []byte {
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(data)), uint32(len(data))), data...)
}

// errProtocol is the error of a driver that has broken the protocol.
var errProtocol = errors.New("protocol error")

var errFrameSize = fmt.Errorf("%w: a frame is too large", errProtocol)

// readFrame reads the content of a frame. It allocates memory as bytes arrive, not by the
// announced length.
func readFrame(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	size := int64(binary.BigEndian.Uint32(head[:]))
	if size > maxFrame {
		return nil, errFrameSize
	}
	var buf bytes.Buffer
	if _, err := io.CopyN(&buf, r, size); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// runFrame tells a driver to run code.
type runFrame struct {
	Type   string            `json:"t"` // "run"
	Run    int64             `json:"run"`
	Count  int               `json:"count"`
	Code   string            `json:"code"`
	Env    map[string]string `json:"env,omitempty"`    // the default environment, if it may have changed
	SetEnv map[string]string `json:"setenv,omitempty"` // for this run
	Home   string            `json:"home,omitempty"`   // for this and later runs
	Dir    string            `json:"cwd,omitempty"`    // for this run
	Stdin  *string           `json:"stdin,omitempty"`  // base64
	Reseed string            `json:"reseed,omitempty"` // hexadecimal
	Limits limits            `json:"limits"`
}

type limits struct {
	TextBytes    int `json:"text_bytes"`
	OutputBytes  int `json:"output_bytes"`
	MessageBytes int `json:"message_bytes"`
	OutputsBytes int `json:"outputs_bytes"`
	Outputs      int `json:"outputs"`
}

var codeLimits = limits{
	TextBytes: maxText, OutputBytes: sandbox.MaxOutputBytes, MessageBytes: maxRich,
	OutputsBytes: sandbox.MaxOutputsBytes, Outputs: sandbox.MaxOutputs,
}

// message is a message from a driver.
type message struct {
	Type string `json:"t"` // "ready", "begun", "rich", "done" or "refused"
	Run  int64  `json:"run"`

	// Of a rich output.
	Result bool              `json:"result"`
	Data   map[string]string `json:"data"`
	Binary map[string]string `json:"binary"` // base64; long texts too
	Meta   map[string]string `json:"meta"`   // JSON
	Files  map[string]string `json:"files"`
	Source string            `json:"source"`

	// Of the end of a run.
	Error       *errorFrame `json:"error"`
	Exit        int         `json:"exit"`
	Interrupted bool        `json:"interrupted"`
	Dir         string      `json:"cwd"`

	// Why a run was refused.
	Why string `json:"why"`
}

type errorFrame struct {
	Name      string `json:"name"`
	Message   string `json:"message"`
	Traceback string `json:"traceback"`
}

// parseMessage parses and checks a message from a driver.
func parseMessage(data []byte) (*message, error) {
	var m message
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("%w: parse a frame: %w", errProtocol, err)
	}
	switch m.Type {
	case "ready", "rich", "done", "refused":
	default:
		return nil, fmt.Errorf("%w: a frame of unknown type", errProtocol)
	}
	m.Exit &= 0xff
	m.Dir = clip.Valid(m.Dir, sandbox.MaxPathBytes)
	m.Why = clip.Valid(m.Why, 1024)
	return &m, nil
}

// codeError is the error of a run, or nil.
func (m *message) codeError() *agentv1.CodeError {
	if m.Error == nil {
		return nil
	}
	return &agentv1.CodeError{
		Name:      clip.Valid(m.Error.Name, 1024),
		Message:   clip.Valid(m.Error.Message, maxErrorText),
		Traceback: clip.Valid(m.Error.Traceback, maxErrorText),
	}
}

// rich makes the output that the message describes, without its invalid parts.
func (m *message) rich() *agentv1.CodeOutput {
	out := &agentv1.CodeOutput{
		Result:   m.Result,
		Data:     map[string][]byte{},
		Metadata: map[string][]byte{},
		Files:    map[string]string{},
		Source:   clip.Valid(m.Source, 64),
	}
	left := maxRich
	add := func(to map[string][]byte, mime string, data []byte) {
		if !validMIME(mime) || len(data) > min(left, sandbox.MaxOutputBytes) || len(to) == maxMIMETypes {
			return
		}
		left -= len(data)
		to[mime] = data
	}
	for mime, text := range m.Data {
		if !isJSON(mime) || json.Valid([]byte(text)) {
			add(out.Data, mime, []byte(text))
		}
	}
	for mime, text := range m.Binary {
		if data, err := base64.StdEncoding.DecodeString(text); err == nil && (!isJSON(mime) || json.Valid(data)) {
			add(out.Data, mime, data)
		}
	}
	for mime, text := range m.Meta {
		if json.Valid([]byte(text)) {
			add(out.Metadata, mime, []byte(text))
		}
	}
	for mime, path := range m.Files {
		if validMIME(mime) && len(path) <= sandbox.MaxPathBytes && len(out.Files) < maxMIMETypes {
			out.Files[mime] = clip.Valid(path, sandbox.MaxPathBytes)
		}
	}
	return out
}

func isJSON(mime string) bool {
	return mime == "application/json" || strings.HasSuffix(mime, "+json")
}

// validMIME accepts MIME types without parameters.
func validMIME(s string) bool {
	kind, sub, ok := strings.Cut(s, "/")
	if !ok || kind == "" || sub == "" || len(s) > maxMIMEName {
		return false
	}
	for _, c := range []byte(kind + sub) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("!#$&-^_.+", c) >= 0:
		default:
			return false
		}
	}
	return true
}
