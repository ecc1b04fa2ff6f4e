package remote

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

// FuzzFrames reads what a hostile peer sends in each of the ways in which frames are read.
// What is read never exceeds what was sent, and an end within a frame is an error.
func FuzzFrames(f *testing.F) {
	frame := func(kind byte, data string) []byte {
		var b bytes.Buffer
		if err := newFrames(nil, &b, nil).write(kind, []byte(data)); err != nil {
			f.Fatal(err)
		}
		return b.Bytes()
	}
	message := frame(frameMessage, `{"Token":1,"Spec":{"ID":"i"},"Root":{"Digest":"sha256:1"},"Label":{}}`)
	f.Add(message)
	f.Add(message[:len(message)-1])
	f.Add(frame(frameError, `{"code":"not_found","message":"gone"}`))
	f.Add(append(frame(frameData, "bytes"), frame(frameEnd, "")...))
	f.Add(append(frame(frameData, ""), frame(frameSecret, "value")...))
	f.Add([]byte{frameMessage, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{'?', 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, sent []byte) {
		reader := func() *frames { return newFrames(bytes.NewReader(sent), io.Discard, nil) }
		for _, v := range []any{new(createRequest), new(step[opened]), new(value), new(Report)} {
			if err := reader().receive(v); errors.Is(err, io.EOF) {
				t.Errorf("a message ended early with %v", err)
			}
		}
		if secret, err := reader().secret(); len(secret) > maxData || errors.Is(err, io.EOF) {
			t.Errorf("a value of %d bytes, %v", len(secret), err)
		}
		c := newConn(reader(), func() {})
		got, err := io.ReadAll(c)
		if len(got) > len(sent) {
			t.Errorf("%d bytes of %d", len(got), len(sent))
		}
		// What was read without an error is what was sent.
		if err == nil {
			var b bytes.Buffer
			w := newConn(newFrames(nil, &b, nil), func() {})
			if _, err := w.Write(got); err != nil {
				t.Fatal(err)
			}
			if err := w.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			again, err := io.ReadAll(newConn(newFrames(&b, io.Discard, nil), func() {}))
			if err != nil || !bytes.Equal(again, got) {
				t.Errorf("%q was written, %q read, %v", got, again, err)
			}
		}
	})
}
