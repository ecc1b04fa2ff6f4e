package node

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

func TestParseAddresses(t *testing.T) {
	got, err := parseAddresses("a.example.com:7780, [2001:db8::1]:7780,192.0.2.1:1")
	if want := []string{"a.example.com:7780", "[2001:db8::1]:7780", "192.0.2.1:1"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for _, bad := range []string{"", "a", "a:1,", ":1", "a:", strings.Repeat("a:1,", 64) + "a:1"} {
		if got, err := parseAddresses(bad); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%.20q: %v, %v", bad, got, err)
		}
	}
}

// All addresses of all names are tried, the one that was right last first.
func TestCandidates(t *testing.T) {
	away := errors.New("no such host")
	a := &addresses{all: []string{"many:7", "none:7", "one:8"}, lookup: func(_ context.Context, host string) ([]string, error) {
		switch host {
		case "many":
			return []string{"192.0.2.1", "2001:db8::1", "192.0.2.1"}, nil
		case "one":
			return []string{"192.0.2.1"}, nil
		}
		return nil, away
	}}
	for _, last := range []string{"", "[2001:db8::1]:7", "192.0.2.1:8", "192.0.2.9:7"} {
		a.last = last
		got, err := a.candidates(t.Context())
		if known := last != "" && last != "192.0.2.9:7"; err != nil || known && got[0] != last {
			t.Errorf("after %q: %v, %v", last, got, err)
		}
		slices.Sort(got)
		if want := []string{"192.0.2.1:7", "192.0.2.1:8", "[2001:db8::1]:7"}; !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	a.all = []string{"none:7"}
	if got, err := a.candidates(t.Context()); !errors.Is(err, away) {
		t.Errorf("a name without addresses: %v, %v", got, err)
	}
}

// Addresses at which nobody proves to be the server are passed over.
func TestDialPassesOver(t *testing.T) {
	refused, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused.Close() // its port is not the stranger's
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := stranger.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	defer func() {
		stranger.Close()
		<-done
	}()
	a := &addresses{all: []string{refused.Addr().String(), stranger.Addr().String()}, lookup: net.DefaultResolver.LookupHost}
	_, err = a.dial(t.Context(), &tls.Config{ServerName: "cove", MinVersion: tls.VersionTLS13})
	for _, l := range []net.Listener{refused, stranger} {
		if err == nil || !strings.Contains(err.Error(), l.Addr().String()) {
			t.Errorf("the error %v does not tell of %s", err, l.Addr())
		}
	}
}

// An address that leads to another server each time is tried again, until somebody answers.
func TestDialAgain(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	answers := httptest.NewUnstartedServer(nil)
	defer answers.Close()
	tries := 0
	a := &addresses{all: []string{l.Addr().String()}, again: time.Minute, lookup: func(_ context.Context, host string) ([]string, error) {
		if tries++; tries == 3 {
			answers.Listener.Close()
			if answers.Listener, err = net.Listen("tcp", l.Addr().String()); err != nil {
				t.Fatal(err)
			}
			answers.StartTLS()
		}
		return []string{host}, nil
	}}
	_, err = a.dial(t.Context(), &tls.Config{ServerName: "cove", MinVersion: tls.VersionTLS13})
	if unknown := (&tls.CertificateVerificationError{}); !errors.As(err, &unknown) || tries != 3 {
		t.Errorf("after %d tries: %v", tries, err)
	}
}

// A node refuses servers that others have replaced, also after it was started again.
func TestAdmit(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		epoch int64
		ok    bool
	}{{0, true}, {7, true}, {7, true}, {6, false}, {8, true}, {7, false}, {0, true}} {
		id, err := Open(dir, "127.0.0.1:1", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if err := id.admit(c.epoch); (err == nil) != c.ok {
			t.Errorf("epoch %d: %v", c.epoch, err)
		}
	}
}
