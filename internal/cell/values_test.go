package cell

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/gateway/intercept"
)

func newIssuer(t testing.TB) []byte {
	t.Helper()
	a, err := intercept.LoadAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := a.NewIssuer()
	if err != nil {
		t.Fatal(err)
	}
	return issuer
}

// all returns the values held.
func (v *values) all() map[string]string {
	got := map[string]string{}
	_ = v.each(func(placeholder string, value []byte) error {
		got[placeholder] = string(value)
		return nil
	})
	return got
}

func TestValuesAreDelivered(t *testing.T) {
	dir, v := t.TempDir(), newValues()
	issuer := newIssuer(t)
	l, err := Listen(dir, secretsSocket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go v.receive(l, slog.New(slog.DiscardHandler))
	sent := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() {
		sent <- SendValues(ctx, dir, issuer, func(yield func(string, []byte) error) error {
			value := []byte("first value")
			defer clear(value)
			return errors.Join(yield("placeholder-1", value), yield("placeholder-2", nil))
		})
	}()
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	<-v.came
	if got, want := v.all(), map[string]string{"placeholder-1": "first value", "placeholder-2": ""}; !maps.Equal(got, want) {
		t.Errorf("held: %q, want %q", got, want)
	}
	if v.certifier() == nil {
		t.Error("nothing certifies names")
	}
	// The cell may close the connection before the sender is finished.
	for range 300 {
		if err := SendValues(ctx, dir, issuer, nil); err != nil {
			t.Fatal(err)
		}
	}
	// A delivery that fails halfway changes nothing.
	broken := errors.New("broken")
	err = SendValues(ctx, dir, issuer, func(yield func(string, []byte) error) error {
		return errors.Join(yield("placeholder-1", []byte("other")), broken)
	})
	if !errors.Is(err, broken) {
		t.Errorf("SendValues: %v, want %v", err, broken)
	}
	if got := v.all()["placeholder-1"]; got != "first value" {
		t.Errorf("half a delivery left %q", got)
	}
	// Replaced values and values that are no longer wanted are wiped.
	old := v.held["placeholder-1"]
	if err := SendValues(ctx, dir, issuer, func(yield func(string, []byte) error) error { return yield("placeholder-1", []byte("second value")) }); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(old, make([]byte, len(old))) {
		t.Errorf("a value that was replaced is still %q", old)
	}
	old = v.held["placeholder-1"]
	v.keep(func(string) bool { return false })
	if len(v.all()) != 0 || !bytes.Equal(old, make([]byte, len(old))) {
		t.Errorf("held: %q, and a value that is not wanted is %q", v.all(), old)
	}
	// Frames of any size are refused properly.
	for _, placeholder := range []string{"", "i", string(make([]byte, maxPlaceholder+1))} {
		if err := SendValues(ctx, dir, issuer, func(yield func(string, []byte) error) error { return yield(placeholder, []byte("x")) }); err == nil {
			t.Errorf("a placeholder of %d bytes was delivered", len(placeholder))
		}
	}
}

func FuzzValues(f *testing.F) {
	frame := func(placeholder, value string) []byte {
		var b bytes.Buffer
		_ = writeValue(&b, placeholder, []byte(value))
		return b.Bytes()
	}
	issuer := newIssuer(f)
	f.Add(slices.Concat(frame(issuerFrame, string(issuer)), frame("placeholder", "value"), frame("", "")))
	f.Add(frame("", ""))
	f.Add([]byte{0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			_, _ = theirs.Write(data)
			_, _ = io.Copy(io.Discard, theirs)
		}()
		defer ours.Close()
		v := newValues()
		defer time.AfterFunc(20*time.Millisecond, func() { theirs.Close() }).Stop()
		if err := v.take(ours); err != nil && len(v.held) > 0 {
			t.Errorf("a delivery that failed left %d values: %v", len(v.held), err)
		}
	})
}

func TestStreamRequest(t *testing.T) {
	dir := t.TempDir()
	l, err := Listen(dir, PortsSocket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_ = ServeStream(t.Context(), conn, func(_ context.Context, o StreamRequest) (net.Conn, error) {
					c := &cell{ended: make(chan struct{})}
					if o.Port == AgentPort || o.Port < 1 || o.Port > 65535 {
						return c.openPort(t.Context(), o)
					}
					if o.Port != 80 {
						return nil, errors.New("what strangers need not know")
					}
					inside, echo := net.Pipe()
					go func() { _, _ = io.Copy(echo, echo) }()
					return inside, nil
				})
			}()
		}
	}()
	conn, err := DialStream(t.Context(), dir, PortsSocket, StreamRequest{Port: 80})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	got := make([]byte, 5)
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
		t.Errorf("read %q, %v", got, err)
	}
	for port, want := range map[int]string{
		81: "the connection could not be made", AgentPort: "port 7007 cannot be connected to; use another port",
		0: "port 0 cannot be connected to; use another port", 65536 + 80: "port 65616 cannot be connected to; use another port",
	} {
		if _, err := DialStream(t.Context(), dir, PortsSocket, StreamRequest{Port: port}); err == nil || err.Error() != want {
			t.Errorf("port %d: %v, want %q", port, err, want)
		}
	}
	// Clients that send nothing, or too much, are disconnected.
	raw, err := Dial(t.Context(), dir, PortsSocket)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if _, err := raw.Write(binary.BigEndian.AppendUint16(nil, 0xffff)); err != nil {
		t.Fatal(err)
	}
	if n, err := raw.Read(got); err == nil {
		t.Errorf("read %d bytes from %s", n, filepath.Base(dir))
	}
}
