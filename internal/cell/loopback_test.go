package cell

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// TestRelayAnswers is an attack: code in the sandbox has replaced the agent, and answers
// the cell's request for a relay with whatever might do harm.
func TestRelayAnswers(t *testing.T) {
	long := strings.Repeat("x", 8<<10)
	for name, c := range map[string]struct {
		answer string
		rest   string // what the connection then carries
		nobody bool
		fails  bool
	}{
		"joined":          {answer: "HTTP/1.1 101 Switching Protocols\r\nUpgrade: cove-relay\r\n\r\nhello", rest: "hello"},
		"nobody listens":  {answer: "HTTP/1.1 502 Bad Gateway\r\n\r\n", nobody: true, fails: true},
		"an older agent":  {answer: "HTTP/1.1 404 Not Found\r\n\r\n", nobody: true, fails: true},
		"another answer":  {answer: "HTTP/1.1 200 OK\r\n\r\n", fails: true},
		"a long status":   {answer: long, fails: true},
		"a long header":   {answer: "HTTP/1.1 101 x\r\nA: " + long, fails: true},
		"endless headers": {answer: "HTTP/1.1 101 x\r\n" + strings.Repeat("A: b\r\n", 1000), fails: true},
		"an early end":    {answer: "HTTP/1.1 101 x\r\nA: b\r\n", fails: true},
		"nothing":         {fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			here, there := net.Pipe()
			defer here.Close()
			_ = here.SetDeadline(time.Now().Add(10 * time.Second))
			go func() {
				defer there.Close()
				buf := make([]byte, 512)
				if _, err := there.Read(buf); err == nil {
					_, _ = io.WriteString(there, c.answer)
				}
			}()
			r, err := askRelay(here, 80)
			if errors.Is(err, errNotListening) != c.nobody || (err != nil) != c.fails {
				t.Fatalf("%v", err)
			}
			if err != nil {
				return
			}
			if got, err := io.ReadAll(&relayed{Conn: here, r: r}); string(got) != c.rest {
				t.Errorf("read %q, %v; want %q", got, err, c.rest)
			}
		})
	}
}
