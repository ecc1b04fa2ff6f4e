package egress

import (
	"crypto/tls"
	"slices"
	"testing"
)

func hello4(t *testing.T, name string) []byte {
	t.Helper()
	return clientHello(t, &tls.Config{ServerName: name})
}

func TestSniff(t *testing.T) {
	whole := hello4(t, "good.example")
	for _, c := range []struct {
		name  string
		bytes []byte
		want  hello
		fails bool
	}{
		{"nothing", nil, hello{}, false},
		{"TLS", whole, hello{speaksTLS, "good.example", false}, false},
		{"TLS and more", append(slices.Clone(whole), 0x17, 3, 3, 0, 1, 0), hello{speaksTLS, "good.example", false}, false},
		{"TLS, half", whole[:len(whole)/2], hello{}, false},
		{"TLS, first byte", whole[:1], hello{}, false},
		{"TLS in records of one byte", splitHello(whole, 1), hello{speaksTLS, "good.example", false}, false},
		{"TLS in records of one byte, half", splitHello(whole, 1)[:600], hello{}, false},
		{"TLS without a name", hello4(t, ""), hello{speaksTLS, "", false}, false},
		{"TLS with an encrypted one", withExtension(whole, extensionECH, nil), hello{speaksTLS, "good.example", true}, false},
		{"TLS with an extension twice", withExtension(withExtension(whole, 0x1234, nil), 0x1234, nil), hello{}, true},
		{"TLS, another message", append([]byte{22, 3, 1, 0, 4}, 2, 0, 0, 0), hello{}, true},
		{"TLS, empty record", []byte{22, 3, 1, 0, 0}, hello{}, true},
		{"TLS, too long a record", []byte{22, 3, 1, 0xff, 0xff}, hello{}, true},
		{"TLS, too long a message", []byte{22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff}, hello{}, true},
		{"TLS, an alert in between", append(splitHello(whole, 100)[:105], 21, 3, 1, 0, 2, 1, 0), hello{}, true},
		{"TLS, an unknown version", []byte{22, 2}, hello{language: other}, false},
		{"HTTP", []byte("GET / HTTP/1.1\r\n"), hello{language: speaksHTTP}, false},
		{"HTTP after lines", []byte("\r\n\n\r\nGET / HTTP/1.1\r\n"), hello{language: speaksHTTP}, false},
		{"HTTP in lower case", []byte("get / http/1.1\r\n"), hello{language: speaksHTTP}, false},
		{"HTTP, half", []byte("GET / HTT"), hello{}, false},
		{"HTTP/2", []byte(h2Preface), hello{language: speaksHTTP2}, false},
		{"HTTP/2, half", []byte(h2Preface[:9]), hello{}, false},
		{"SSH", []byte("SSH-2.0-OpenSSH_9.2\r\n"), hello{language: other}, false},
		{"SMTP", []byte("EHLO me\r\n"), hello{language: other}, false},
		{"binary", []byte{0, 0, 0, 8, 4, 210, 22, 47}, hello{language: other}, false},
		{"a line without an end", slices.Repeat([]byte("A"), maxLine+1), hello{language: other}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := sniff(c.bytes)
			if (err != nil) != c.fails || err == nil && got != c.want {
				t.Errorf("got %+v, %v; want %+v, error %t", got, err, c.want, c.fails)
			}
		})
	}
}

func TestHostOf(t *testing.T) {
	for s, want := range map[string]struct {
		name string
		ok   bool
	}{
		"good.example": {"good.example", true}, "Good.Example.": {"good.example", true}, "good.example:80": {"good.example", true}, "good.example:": {"good.example", true},
		"192.0.2.1": {"", true}, "192.0.2.1:80": {"", true}, "[2001:db8::1]": {"", true}, "[2001:db8::1]:80": {"", true},
		"": {}, ":80": {}, "a:b": {}, "a:0": {}, "a:80:80": {}, "a@b": {}, "a b": {}, "a/b": {}, "[a]": {}, "[::1": {}, "[::1]x": {}, "[::1]:": {"", true}, "2001:db8::1": {},
		"127.1": {}, "0x7f.1": {}, "2130706433": {}, "..": {}, ".a": {}, "a..b": {}, "ü.example": {}, "a\x00b": {}, "a,b": {}, "a%2eb": {},
	} {
		if name, ok := hostOf(s); name != want.name || ok != want.ok {
			t.Errorf("%q: got %q, %t; want %q, %t", s, name, ok, want.name, want.ok)
		}
	}
}

// FuzzSniff checks that more bytes never change an earlier result: an attacker must not
// be able to show one name to the gateway and another to the server.
func FuzzSniff(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), 5)
	f.Add([]byte(h2Preface), 3)
	f.Add([]byte{22, 3, 1, 0, 5, 1, 0, 0, 1, 0}, 6)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		whole, err := sniff(b)
		// Piecewise gives the same result as all bytes at once.
		var r records
		for i := range min(len(b), 2000) {
			if h, herr := r.first(b[:i+1]); herr != nil || h.language != unknown {
				if once, oerr := sniff(b[:i+1]); once != h || (oerr == nil) != (herr == nil) {
					t.Fatalf("%q is %+v, %v at once, and %+v, %v piece by piece", b[:i+1], once, oerr, h, herr)
				}
				break
			}
		}
		if n < 0 || n > len(b) {
			return
		}
		part, perr := sniff(b[:n])
		if perr == nil && part.language != unknown && (err != nil || whole != part) {
			t.Fatalf("%q is %+v, and %+v, %v with more", b[:n], part, whole, err)
		}
		if name, ok := hostname(whole.name); whole.name != "" && (!ok || name != whole.name) {
			t.Fatalf("the name %q is not in the form that is compared", whole.name)
		}
		_ = nameIn(b)
	})
}

func FuzzHostOf(f *testing.F) {
	f.Add("good.example:80")
	f.Add("[::1]:80")
	f.Fuzz(func(t *testing.T, s string) {
		name, ok := hostOf(s)
		if !ok || name == "" {
			return
		}
		if again, ok := hostname(name); !ok || again != name {
			t.Fatalf("%q gives %q, which is not in the form that is compared", s, name)
		}
	})
}
