package internet

import (
	"encoding/binary"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"golang.org/x/net/dns/dnsmessage"
)

// standardNames are names that are there from the start.
func standardNames() map[string][]netip.Addr {
	at := func(i int) []netip.Addr { return []netip.Addr{Public[i]} }
	return map[string][]netip.Addr{
		"example.com.": at(0), "www.example.com.": at(0), "api.example.com.": at(1),
		"other.test.": at(3), "evil.test.": at(5),
		"pypi.org.": at(2), "files.pythonhosted.org.": at(2), "registry.npmjs.org.": at(2), "github.com.": at(2),
		"intranet.test.": {Private[0]}, "metadata.test.": {Private[4]}, "loopback.test.": {netip.MustParseAddr("127.0.0.1")},
		"self.test.": {Host}, "mixed.test.": {Private[0], Public[0]},
	}
}

// dnsServer answers for all names that it knows, and that the others do not
// exist.
type dnsServer struct {
	mu    sync.Mutex
	names map[string][]netip.Addr // guarded by mu
	asked map[string]int          // guarded by mu
}

// SetName lets a name stand for addresses, or for nothing. "*.NAME" stands for
// all names right below NAME that are not set themselves.
func (n *Internet) SetName(name string, addrs ...netip.Addr) {
	n.dns.mu.Lock()
	defer n.dns.mu.Unlock()
	n.dns.names[strings.ToLower(name)+"."] = addrs
}

// Asked returns the names that were asked for below a domain.
func (n *Internet) Asked(domain string) []string {
	n.dns.mu.Lock()
	defer n.dns.mu.Unlock()
	all := slices.Sorted(maps.Keys(n.dns.asked))
	return slices.DeleteFunc(all, func(name string) bool { return !strings.HasSuffix("."+name, "."+strings.ToLower(domain)+".") })
}

// serveStream answers questions on a connection.
func (s *dnsServer) serveStream(c net.Conn) {
	for {
		var head [2]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		b := make([]byte, binary.BigEndian.Uint16(head[:]))
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		out := s.answer(b)
		if out == nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(out))), out...)); err != nil {
			return
		}
	}
}

// answer returns the answer to a question, or nil for what is none.
func (s *dnsServer) answer(question []byte) []byte {
	var m dnsmessage.Message
	if err := m.Unpack(question); err != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	name := strings.ToLower(q.Name.String())
	s.mu.Lock()
	if s.asked == nil {
		s.asked = map[string]int{}
	}
	s.asked[name]++
	addrs, known := s.names[name]
	if _, parent, ok := strings.Cut(name, "."); ok && !known {
		addrs, known = s.names["*."+parent]
	}
	s.mu.Unlock()
	reply := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: m.ID, Response: true, RecursionDesired: m.RecursionDesired, RecursionAvailable: true},
		Questions: m.Questions,
	}
	if !known {
		reply.RCode = dnsmessage.RCodeNameError
	}
	head := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: dnsmessage.ClassINET, TTL: 1}
	for _, a := range addrs {
		switch {
		case q.Type == dnsmessage.TypeA && a.Is4():
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: a.As4()}})
		case q.Type == dnsmessage.TypeAAAA && a.Is6():
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	out, err := reply.Pack()
	if err != nil {
		return nil
	}
	return out
}
