package limits

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// ErrNotUTF8 is the error of [CheckJSON] for text that is not UTF-8. A decoder would
// silently replace the invalid bytes.
var ErrNotUTF8 = errors.New("the text is not valid UTF-8")

// DuplicateError is the error of [CheckJSON] for an object in which a member occurs
// twice.
type DuplicateError struct {
	// Name is the member's name, shortened to 64 bytes.
	Name string
}

// Error returns a message with the member's name.
func (e *DuplicateError) Error() string {
	return fmt.Sprintf("the member %q is given twice in one object; give it once", e.Name)
}

// maxJSONDepth is how deep encoding/json decodes; it refuses deeper text itself.
const maxJSONDepth = 10_000

// CheckJSON refuses JSON that two readers may understand differently: text that is not
// UTF-8 ([ErrNotUTF8]), and objects that contain a member twice ([DuplicateError]), of
// which encoding/json takes the last and others the first, so that a filter in front of
// the server sees a different request than the server does. Every door calls CheckJSON on
// a body before it decodes the body. Text that is not JSON passes: the decoder refuses
// it.
func CheckJSON(data []byte) error {
	if !utf8.Valid(data) {
		return ErrNotUTF8
	}
	type level struct {
		names  map[string]bool // nil in an array
		atName bool            // the next string is a member's name
	}
	var stack []level
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '{':
			stack = append(stack, level{names: map[string]bool{}, atName: true})
		case '[':
			stack = append(stack, level{})
		case '}', ']':
			if len(stack) == 0 {
				return nil
			}
			stack = stack[:len(stack)-1]
		case ',':
			if n := len(stack); n > 0 {
				stack[n-1].atName = stack[n-1].names != nil
			}
		case '"':
			end := endOfString(data, i)
			if end < 0 {
				return nil
			}
			if n := len(stack); n > 0 && stack[n-1].atName {
				top := &stack[n-1]
				name, ok := memberName(data[i : end+1])
				if !ok {
					return nil
				}
				if top.names[name] {
					return &DuplicateError{Name: name[:min(len(name), 64)]}
				}
				top.names[name], top.atName = true, false
			}
			i = end
		}
		if len(stack) > maxJSONDepth {
			return nil
		}
	}
	return nil
}

// endOfString returns the index of the quotation mark that closes the string that starts
// at begin, or -1.
func endOfString(data []byte, begin int) int {
	for i := begin + 1; i < len(data); i++ {
		switch data[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return -1
}

// memberName decodes a member's name, which may be spelled with escapes.
func memberName(quoted []byte) (name string, ok bool) {
	if bytes.IndexByte(quoted, '\\') >= 0 {
		return name, json.Unmarshal(quoted, &name) == nil
	}
	return string(quoted[1 : len(quoted)-1]), true
}
