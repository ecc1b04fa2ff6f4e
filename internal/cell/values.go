package cell

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/gateway/intercept"
	"github.com/cove-sh/cove/internal/machine"
)

// The values of secrets are delivered to the cell over a socket of their own, and stay in
// its memory. A delivery is a sequence of frames: the length of a placeholder and the
// length of a value, four bytes each, followed by the placeholder and the value. A frame
// with two zero lengths ends the delivery, and a byte of value 1 acknowledges it. Values
// are only copied into buffers that are wiped. The issuer of the gateway's certificates
// is secret too, and is delivered like a value.

const (
	maxPlaceholder = 1 << 10
	maxValue       = 1 << 20
	// maxValues limits the values of a sandbox.
	maxValues = 1024
	// deliveryTimeout limits the time of one delivery.
	deliveryTimeout = 30 * time.Second
)

// secretsSocket receives the values of secrets.
const secretsSocket = "secrets.sock"

// issuerFrame is the issuer's placeholder. It is shorter than any other.
const issuerFrame = "i"

// SendValues delivers the values of a sandbox's secrets, which may be nil, and an issuer
// of [intercept.Authority] to the sandbox's cell, whose directory is dir.
func SendValues(ctx context.Context, dir string, issuer []byte, values engine.Values) error {
	conn, err := Dial(ctx, dir, secretsSocket)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(deliveryTimeout))
	if err := writeValue(conn, issuerFrame, issuer); err != nil {
		return err
	}
	if values != nil {
		err = values(func(placeholder string, value []byte) error {
			if len(placeholder) <= len(issuerFrame) || len(placeholder) > maxPlaceholder || len(value) > maxValue {
				return errors.New("a secret cannot be delivered: its placeholder or value is too short or too long")
			}
			return writeValue(conn, placeholder, value)
		})
	}
	if err != nil {
		return err
	}
	if err := writeValue(conn, "", nil); err != nil {
		return err
	}
	var answer [1]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil || answer[0] != 1 {
		return fmt.Errorf("deliver the values of secrets: %w", errors.Join(err, errors.New("the cell did not acknowledge them")))
	}
	return nil
}

func writeValue(w io.Writer, placeholder string, value []byte) error {
	var head [8]byte
	binary.BigEndian.PutUint32(head[:4], uint32(len(placeholder)))
	binary.BigEndian.PutUint32(head[4:], uint32(len(value)))
	for _, b := range [][]byte{head[:], []byte(placeholder), value} {
		if len(b) == 0 { // an empty write after the last frame could fail: the cell may have closed
			continue
		}
		if _, err := w.Write(b); err != nil {
			return fmt.Errorf("deliver the values of secrets: %w", err)
		}
	}
	return nil
}

// values holds the values of the sandbox's secrets.
type values struct {
	came chan struct{} // closed after the first delivery

	mu     sync.RWMutex
	held   map[string][]byte // by placeholder; guarded by mu
	issuer *intercept.Issuer // nil before the first delivery; guarded by mu
	once   sync.Once
}

func newValues() *values {
	return &values{came: make(chan struct{}), held: map[string][]byte{}}
}

// each yields the values, as an [engine.Values].
func (v *values) each(yield func(placeholder string, value []byte) error) error {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for placeholder, value := range v.held {
		if err := yield(placeholder, value); err != nil {
			return err
		}
	}
	return nil
}

// certifier returns the issuer of certificates, or nil if none was delivered.
func (v *values) certifier() *intercept.Issuer {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.issuer
}

// keep wipes all values for which wanted returns false.
func (v *values) keep(wanted func(placeholder string) bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for placeholder, value := range v.held {
		if !wanted(placeholder) {
			clear(value)
			delete(v.held, placeholder)
		}
	}
}

// receive receives deliveries until the socket is closed.
func (v *values) receive(l net.Listener, log *slog.Logger) {
	for {
		conn, err := machine.Accept(l)
		if err != nil {
			return
		}
		if err := v.take(conn); err != nil {
			log.Warn("receive the values of secrets", "error", err)
		}
		conn.Close()
	}
}

// take receives one delivery, either completely or not at all.
func (v *values) take(conn net.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(deliveryTimeout))
	came := map[string][]byte{}
	defer func() {
		for _, value := range came { // empty after a success
			clear(value)
		}
	}()
	for {
		placeholder, value, err := readValue(conn)
		if err != nil {
			return err
		}
		if placeholder == "" {
			break
		}
		clear(came[placeholder])
		came[placeholder] = value
		if len(came) > maxValues {
			return errors.New("too many values")
		}
	}
	issuer, err := intercept.ParseIssuer(came[issuerFrame])
	if err != nil {
		return err
	}
	clear(came[issuerFrame])
	delete(came, issuerFrame)
	v.mu.Lock()
	if v.issuer == nil { // certificates of the first one may be in use
		v.issuer = issuer
	}
	for placeholder, value := range came {
		clear(v.held[placeholder])
		v.held[placeholder] = value
	}
	clear(came)
	v.mu.Unlock()
	v.once.Do(func() { close(v.came) })
	_, err = conn.Write([]byte{1})
	return err
}

func readValue(r io.Reader) (placeholder string, value []byte, err error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return "", nil, err
	}
	n, m := binary.BigEndian.Uint32(head[:4]), binary.BigEndian.Uint32(head[4:])
	if n > maxPlaceholder || m > maxValue || n == 0 && m > 0 {
		return "", nil, errors.New("a frame is too large")
	}
	name := make([]byte, n)
	if _, err := io.ReadFull(r, name); err != nil {
		return "", nil, err
	}
	value = make([]byte, m)
	if _, err := io.ReadFull(r, value); err != nil {
		clear(value)
		return "", nil, err
	}
	return string(name), value, nil
}
