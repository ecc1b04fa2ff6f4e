package intercept

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

// asked is a response in pieces. It records how much the sandbox had received each time
// that the gateway asked the host for more.
type asked struct {
	pieces
	had   *int
	trace []int
}

func (a *asked) Read(p []byte) (int, error) {
	a.trace = append(a.trace, *a.had)
	return a.pieces.Read(p)
}

// delivered returns how much the sandbox has received before each further piece, by the
// host's protocol.
func delivered(t *testing.T, protocol string, list []string) []int {
	t.Helper()
	ms := masksFor(value)
	had := 0
	src := &asked{pieces: pieces{slices.Clone(list), io.EOF}, had: &had}
	var s filter = newMasker(ms)
	switch protocol {
	case "websocket":
		s = &webSocketFilter{v: newMasker(ms), single: newMasker(ms)}
		for i, piece := range src.list {
			opcode := byte(opContinuation)
			if i == 0 {
				opcode = opText
			}
			src.list[i] = string(appendFrame(nil, opcode, i == len(list)-1, []byte(piece)))
		}
	case "grpc":
		s = &grpcFilter{v: newMasker(ms)}
		text := strings.Join(list, "")
		src.list[0] = string([]byte{0, 0, 0, byte(len(text) >> 8), byte(len(text))}) + src.list[0]
	}
	b := newMaskedBody(src, ms, s, nil)
	defer b.Close()
	buf := make([]byte, 4096)
	for {
		n, err := b.Read(buf)
		had += n
		if err != nil {
			break
		}
	}
	return append(src.trace, had)
}

// TestGuessesRevealNothing checks that, when a host echoes what the sandbox sends, nothing
// that the sandbox sees depends on how much of it is right: neither when it arrives nor
// in what pieces. The guesses are of the value, of its encoded forms and of both ends.
func TestGuessesRevealNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 11))
	forms := []string{value, base64.RawStdEncoding.EncodeToString([]byte("me:" + value)), "sk-live-THE-REAL-VALUE-0123456789-%2F%2Bx"}
	for n := range 3000 {
		form := forms[n%len(forms)]
		size := 1 + r.IntN(len(form)-1)
		right := form[:size]
		wrong := []byte(right)
		for i := r.IntN(size); i < size; i++ {
			wrong[i] = "QZ"[r.IntN(2)]
		}
		before := []string{"", "data: ", "\n", strings.Repeat("x", r.IntN(1100))}[r.IntN(4)]
		after := []string{"~\n", "~", " ", "Z\nmore", "ZZ"}[r.IntN(5)]
		for _, protocol := range []string{"body", "websocket", "grpc"} {
			yes := delivered(t, protocol, []string{before + right, after, "the end"})
			no := delivered(t, protocol, []string{before + string(wrong), after, "the end"})
			if !slices.Equal(yes, no) {
				t.Fatalf("%s: after %q the sandbox had %v, after %q %v", protocol, before+right, yes, before+string(wrong), no)
			}
		}
	}
}

// TestStreamsDoNotWait checks that text that is complete before the host sends more is
// delivered at once: lines, events and words, and messages of WebSockets and of gRPC.
func TestStreamsDoNotWait(t *testing.T) {
	for _, piece := range []string{"data: {\"a\":\"b\"}\n\n", "{\"a\": 1}\n", "{\"a\":\"sk-live-THE\"}", "word ", value[:8] + "\r\n"} {
		if got := delivered(t, "body", []string{piece, "more\n"}); got[1] != len(piece) {
			t.Errorf("%q: the sandbox had %d bytes", piece, got[1])
		}
	}
	if got := delivered(t, "websocket", []string{"token"}); got[1] != len("token")+2 {
		t.Errorf("of a message of a WebSocket the sandbox had %d bytes", got[1])
	}
	if got := delivered(t, "grpc", []string{"token"}); got[1] != len("token")+5 {
		t.Errorf("of a message of gRPC the sandbox had %d bytes", got[1])
	}
}

// TestReflectedInPieces checks that a value that a host sends in two pieces, at any
// split, or byte by byte, is masked from its first byte.
func TestReflectedInPieces(t *testing.T) {
	w := newHarness(t)
	w.host(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		got := r.Header.Get("X-Api-Key")
		var list []string
		if at := 0; r.URL.Query().Get("at") != "" {
			_, _ = fmt.Sscan(r.URL.Query().Get("at"), &at)
			list = []string{got[:at], got[at:]}
		} else {
			list = strings.Split(got, "")
		}
		if r.Header.Get("Upgrade") != "" {
			c, err := websocket.Accept(rw, r, nil)
			if err != nil {
				return
			}
			defer c.CloseNow()
			m, err := c.Writer(r.Context(), websocket.MessageText)
			if err != nil {
				return
			}
			for _, piece := range list {
				_, _ = io.WriteString(m, piece)
			}
			_ = m.Close()
			_, _, _ = c.Read(r.Context())
			return
		}
		for _, piece := range list {
			_, _ = io.WriteString(rw, piece)
			rw.(http.Flusher).Flush()
		}
	}), apiHost)
	splits := []string{""}
	for at := range len(value) {
		splits = append(splits, "?at="+itoa(at))
	}
	clients := map[int]*http.Client{1: w.client(1), 2: w.client(2)}
	for _, split := range splits {
		for version, c := range clients {
			if _, body := do(t, c, "GET", "https://"+apiHost+"/"+split, "", "X-Api-Key: "+placeholder); body != masked(value) {
				t.Errorf("HTTP/%d %s: %q", version, split, body)
			}
		}
		c, _, err := websocket.Dial(t.Context(), "wss://"+apiHost+"/"+split, &websocket.DialOptions{
			HTTPClient: clients[1], HTTPHeader: http.Header{"X-Api-Key": {placeholder}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Read(t.Context()); err != nil || string(got) != masked(value) {
			t.Errorf("WebSocket %s: %q, %v", split, got, err)
		}
		c.CloseNow()
	}
}

// TestFrames checks that a control frame between the fragments of a message does not wait
// for the message, and that a host that violates the protocol is cut off.
func TestFrames(t *testing.T) {
	ms := masksFor(value)
	f := &webSocketFilter{v: newMasker(ms), single: newMasker(ms)}
	in := appendFrame(nil, opText, false, []byte("a b"+value[:9]))
	in = appendFrame(in, opPong, true, []byte(value))
	out, err := f.pass(nil, in)
	want := appendFrame(nil, opText, false, []byte("a "))
	want = appendFrame(want, opPong, true, []byte(masked(value)))
	if err != nil || !bytes.Equal(out, want) {
		t.Fatalf("%q, want %q, %v", out, want, err)
	}
	out, err = f.pass(nil, appendFrame(nil, opContinuation, true, []byte(value[9:])))
	if want := appendFrame(nil, opContinuation, true, []byte("b"+masked(value))); err != nil || !bytes.Equal(out, want) {
		t.Fatalf("%q, want %q, %v", out, want, err)
	}
	for _, bad := range []string{"\xc1\x00", "\x81\x80", "\x80\x00", "\x83\x00", "\x09\x00", "\x89\x7e\x00\x80"} {
		f := &webSocketFilter{v: newMasker(ms), single: newMasker(ms)}
		if _, err := f.pass(nil, []byte(bad)); err == nil {
			t.Errorf("the frame %q was passed on", bad)
		}
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(appendFrame(appendFrame(nil, opText, false, []byte(value[:5])), opContinuation, true, []byte(value[5:])))
	f.Add(appendFrame(nil, opPong, true, []byte(value)))
	f.Fuzz(func(t *testing.T, in []byte) {
		ms := masksFor(value)
		whole := &webSocketFilter{v: newMasker(ms), single: newMasker(ms)}
		if out, _ := whole.pass(nil, in); bytes.Contains(out, []byte(value)) {
			t.Fatalf("%q came through as %q", in, out)
		}
		ms.release()
	})
}
