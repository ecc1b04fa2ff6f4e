package egress

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// udpAnswer is the largest answer over UDP, in both directions.
	udpAnswer = 1232
	// exchangeRounds is how often each server is asked, and exchangeWait is how long to wait
	// for each answer.
	exchangeRounds = 2
	exchangeWait   = 2 * time.Second
	// hostsOwnServers is the file that names the host's resolvers.
	hostsOwnServers = "/etc/resolv.conf"
	maxServers      = 3
)

var errNoAnswer = errors.New("no resolver has answered")

// upstream queries the host's resolvers. It is safe for concurrent use.
type upstream struct {
	dialer  Dialer
	servers []netip.AddrPort // empty means the host's

	mu   sync.Mutex
	read time.Time        // guarded by mu
	own  []netip.AddrPort // the host's, guarded by mu
}

// list returns the servers to ask.
func (u *upstream) list() []netip.AddrPort {
	if len(u.servers) > 0 {
		return u.servers
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if time.Since(u.read) < 5*time.Second {
		return u.own
	}
	u.read = time.Now()
	if f, err := os.Open(hostsOwnServers); err == nil {
		defer f.Close()
		if own := parseResolvConf(f); len(own) > 0 {
			u.own = own
		}
	}
	if len(u.own) == 0 {
		u.own = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53")}
	}
	return u.own
}

// parseResolvConf returns the servers in a resolv.conf.
func parseResolvConf(r io.Reader) []netip.AddrPort {
	var servers []netip.AddrPort
	lines := bufio.NewScanner(io.LimitReader(r, 64<<10))
	for lines.Scan() && len(servers) < maxServers {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(fields[1]); err == nil {
			servers = append(servers, netip.AddrPortFrom(a, 53))
		}
	}
	return servers
}

// ask sends one query to the servers in turn, until one gives a final answer.
func (u *upstream) ask(ctx context.Context, q dnsmessage.Question) (*dnsmessage.Message, error) {
	var last *dnsmessage.Message
	var lastErr error
	for range exchangeRounds {
		for _, server := range u.list() {
			m, err := u.exchange(ctx, server, q)
			switch {
			case ctx.Err() != nil:
				return nil, ctx.Err()
			case err != nil:
				lastErr = err
			case m.RCode == dnsmessage.RCodeSuccess || m.RCode == dnsmessage.RCodeNameError:
				return m, nil
			default:
				last = m
			}
		}
		if last != nil {
			return last, nil
		}
	}
	if lastErr == nil {
		lastErr = errors.New("no resolver is configured")
	}
	return nil, fmt.Errorf("%w: %v", errNoAnswer, lastErr)
}

// exchange queries one server, and repeats the query over TCP if the answer is too long
// for UDP.
func (u *upstream) exchange(ctx context.Context, server netip.AddrPort, q dnsmessage.Question) (*dnsmessage.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeWait)
	defer cancel()
	query, id, err := packQuery(q)
	if err != nil {
		return nil, err
	}
	m, err := u.overUDP(ctx, server, query, id, q)
	if err == nil && m.Truncated {
		return u.overTCP(ctx, server, query, id, q)
	}
	return m, err
}

func packQuery(q dnsmessage.Question) (query []byte, id uint16, err error) {
	var random [2]byte
	_, _ = rand.Read(random[:]) // never fails
	id = binary.BigEndian.Uint16(random[:])
	m := dnsmessage.Message{
		Header:      dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions:   []dnsmessage.Question{q},
		Additionals: []dnsmessage.Resource{edns(&dnsmessage.OPTResource{})},
	}
	query, err = m.Pack()
	return query, id, err
}

func (u *upstream) dial(ctx context.Context, network string, server netip.AddrPort) (net.Conn, func(), error) {
	c, err := u.dialer.DialContext(ctx, network, server.String())
	if err != nil {
		return nil, nil, err
	}
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		c.Close()
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	return c, func() { stop(); c.Close() }, nil
}

func (u *upstream) overUDP(ctx context.Context, server netip.AddrPort, query []byte, id uint16, q dnsmessage.Question) (*dnsmessage.Message, error) {
	c, done, err := u.dial(ctx, "udp", server)
	if err != nil {
		return nil, err
	}
	defer done()
	if _, err := c.Write(query); err != nil {
		return nil, err
	}
	buf := make([]byte, 4096)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return nil, err
		}
		// A message that does not answer this query may be forged: keep waiting.
		if m, ok := parseAnswer(buf[:n], id, q); ok {
			return m, nil
		}
	}
}

func (u *upstream) overTCP(ctx context.Context, server netip.AddrPort, query []byte, id uint16, q dnsmessage.Question) (*dnsmessage.Message, error) {
	c, done, err := u.dial(ctx, "tcp", server)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := writeTCPMessage(c, query); err != nil {
		return nil, err
	}
	answer, err := readTCPMessage(c)
	if err != nil {
		return nil, err
	}
	m, ok := parseAnswer(answer, id, q)
	if !ok {
		return nil, errors.New("the answer is to another question")
	}
	return m, nil
}

// writeTCPMessage writes one message, preceded by its length.
func writeTCPMessage(w io.Writer, m []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(m))), m...))
	return err
}

// readTCPMessage reads one message, preceded by its length.
func readTCPMessage(r io.Reader) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	m := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(r, m)
	return m, err
}

// parseAnswer parses a message and reports whether it answers the query.
func parseAnswer(b []byte, id uint16, q dnsmessage.Question) (*dnsmessage.Message, bool) {
	var p dnsmessage.Parser
	h, err := p.Start(b)
	if err != nil || h.ID != id || !h.Response {
		return nil, false
	}
	asked, err := p.AllQuestions()
	if err != nil || len(asked) != 1 || asked[0].Type != q.Type || asked[0].Class != q.Class ||
		!strings.EqualFold(asked[0].Name.String(), q.Name.String()) {
		return nil, false
	}
	m := &dnsmessage.Message{Header: h, Questions: asked}
	if h.Truncated {
		return m, true
	}
	if m.Answers, err = p.AllAnswers(); err != nil {
		return nil, false
	}
	// The other sections may not parse, and are not needed.
	m.Authorities, _ = p.AllAuthorities()
	return m, true
}
