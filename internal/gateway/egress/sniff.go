package egress

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/crypto/cryptobyte"
)

const (
	// maxSniff is how many bytes at the start of a connection are examined.
	maxSniff = 64 << 10
	// maxLine is the longest first line of an HTTP request.
	maxLine = 16 << 10
	// maxBlank is how much whitespace may precede that line.
	maxBlank = 1 << 10
)

// h2Preface starts HTTP/2 without TLS.
const h2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// language is the protocol of a connection, by its first bytes.
type language int

const (
	unknown     language = iota // needs more bytes
	other                       // none of the protocols below
	speaksTLS                   // TLS, with a complete ClientHello
	speaksHTTP                  // HTTP/1
	speaksHTTP2                 // HTTP/2 without TLS
)

// hello is the information in the first bytes of a connection.
type hello struct {
	language language
	// name is the TLS server name in canonical form, or empty.
	name string
	// hidden reports whether the ClientHello contains an encrypted one (ECH), or what looks
	// like one.
	hidden bool
}

var errHello = errors.New("the ClientHello is not well-formed")

// sniff examines the first bytes of a connection. It fails on bytes that no honest
// program sends and that two programs could read differently.
func sniff(b []byte) (hello, error) { return new(records).first(b) }

// first is sniff for bytes that arrive piece by piece.
func (r *records) first(b []byte) (hello, error) {
	if len(b) == 0 {
		return hello{}, nil
	}
	if b[0] == recordHandshake {
		if len(b) > 1 && b[1] != 3 {
			return hello{language: other}, nil
		}
		return r.sniff(b)
	}
	if n := min(len(b), len(h2Preface)); string(b[:n]) == h2Preface[:n] {
		if n == len(h2Preface) {
			return hello{language: speaksHTTP2}, nil
		}
		return hello{}, nil
	}
	return hello{language: sniffHTTP(b)}, nil
}

// sniffHTTP recognises the first line of an HTTP request, including anything that a
// lenient server could accept as one.
func sniffHTTP(b []byte) language {
	all := len(b)
	b = bytes.TrimLeft(b, "\r\n \t")
	if all-len(b) > maxBlank {
		return other
	}
	line, _, whole := bytes.Cut(b, []byte("\n"))
	for _, c := range line {
		if c < ' ' && c != '\t' && c != '\r' && c != '\v' && c != '\f' {
			return other
		}
	}
	if !whole {
		if len(line) > maxLine {
			return other
		}
		return unknown
	}
	last := strings.ToUpper(string(line[bytes.LastIndexAny(bytes.TrimRight(line, "\r \t\v\f"), " \t\v\f")+1:]))
	if strings.HasPrefix(last, "HTTP/") {
		return speaksHTTP
	}
	return other
}

// Numbers of TLS.
const (
	recordHandshake       = 22
	maxRecord             = 1<<14 + 256
	messageClientHello    = 1
	maxClientHello        = 48 << 10
	extensionServerName   = 0
	extensionECH          = 0xfe0d
	extensionESNI         = 0xffce // its predecessor
	nameTypeHost          = 0
	maxExtensions         = 256
	clientHelloHeaderSize = 4
	recordHeaderSize      = 5
)

// records assembles a ClientHello from the records that it is spread over, as their bytes
// arrive. Each byte is examined once, however small the pieces.
type records struct {
	used    int    // bytes examined, in whole records
	message []byte // the message in these bytes
}

// sniff examines all bytes received so far, which start with those of the previous call.
func (r *records) sniff(b []byte) (hello, error) {
	for r.used < len(b) {
		rest := b[r.used:]
		if rest[0] != recordHandshake || len(rest) > 1 && rest[1] != 3 {
			return hello{}, errHello
		}
		if len(rest) < recordHeaderSize {
			return hello{}, nil
		}
		size := int(rest[3])<<8 | int(rest[4])
		if size == 0 || size > maxRecord {
			return hello{}, errHello
		}
		part := rest[recordHeaderSize:min(len(rest), recordHeaderSize+size)]
		if len(part) == size {
			r.message = append(r.message, part...)
			r.used += recordHeaderSize + size
			part = nil
		}
		if h, err := helloIn(r.message, part); err != nil || h.language != unknown {
			return h, err
		}
		if part != nil {
			return hello{}, nil
		}
	}
	return hello{}, nil
}

// helloIn parses a ClientHello from two parts, if it is complete.
func helloIn(message, part []byte) (hello, error) {
	head := message
	if len(message) < clientHelloHeaderSize {
		head = slices.Concat(message, part[:min(len(part), clientHelloHeaderSize)])
	}
	if len(head) > 0 && head[0] != messageClientHello {
		return hello{}, errHello
	}
	if len(head) < clientHelloHeaderSize {
		return hello{}, nil
	}
	want := clientHelloHeaderSize + int(head[1])<<16 + int(head[2])<<8 + int(head[3])
	if want > maxClientHello {
		return hello{}, errHello
	}
	if len(message)+len(part) < want {
		return hello{}, nil
	}
	return parseClientHello(slices.Concat(message, part)[clientHelloHeaderSize:want])
}

func parseClientHello(b []byte) (hello, error) {
	h := hello{language: speaksTLS}
	s := cryptobyte.String(b)
	var session, suites, compression, extensions cryptobyte.String
	if !s.Skip(2+32) || // version, random
		!s.ReadUint8LengthPrefixed(&session) ||
		!s.ReadUint16LengthPrefixed(&suites) ||
		!s.ReadUint8LengthPrefixed(&compression) {
		return h, errHello
	}
	if s.Empty() {
		return h, nil // without extensions, so without a name
	}
	if !s.ReadUint16LengthPrefixed(&extensions) || !s.Empty() {
		return h, errHello
	}
	seen := map[uint16]bool{}
	for !extensions.Empty() {
		var typ uint16
		var data cryptobyte.String
		if !extensions.ReadUint16(&typ) || !extensions.ReadUint16LengthPrefixed(&data) {
			return h, errHello
		}
		if seen[typ] || len(seen) > maxExtensions {
			return h, errHello // it is unknown which of the two the server uses
		}
		seen[typ] = true
		switch typ {
		case extensionServerName:
			name, err := parseServerName(data)
			if err != nil {
				return h, err
			}
			h.name = name
		case extensionECH, extensionESNI:
			h.hidden = true
		}
	}
	return h, nil
}

// parseServerName returns the only name in the extension, or "" for an address.
func parseServerName(s cryptobyte.String) (string, error) {
	var list, raw cryptobyte.String
	var typ uint8
	if !s.ReadUint16LengthPrefixed(&list) || !s.Empty() ||
		!list.ReadUint8(&typ) || typ != nameTypeHost ||
		!list.ReadUint16LengthPrefixed(&raw) || !list.Empty() {
		return "", errHello
	}
	if _, err := netip.ParseAddr(string(raw)); err == nil {
		return "", nil
	}
	name, ok := hostname(string(raw))
	if !ok {
		return "", errors.New("the ClientHello's server name is not a host's name")
	}
	return name, nil
}

// hostOf returns the name in a Host header or an :authority. The name is "" for an
// address.
func hostOf(s string) (name string, ok bool) {
	if strings.HasPrefix(s, "[") {
		host, port, closed := strings.Cut(s[1:], "]")
		if _, err := netip.ParseAddr(host); err != nil || !closed || !portSuffix(port) {
			return "", false
		}
		return "", true
	}
	host, port, has := strings.Cut(s, ":")
	if has && !portSuffix(":"+port) {
		return "", false
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return "", true
	}
	return hostname(host)
}

// portSuffix reports whether s is empty or a colon with a port.
func portSuffix(s string) bool {
	if s == "" || s == ":" {
		return true
	}
	_, err := parsePort(s[1:])
	return s[0] == ':' && err == nil
}
