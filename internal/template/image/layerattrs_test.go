package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/testing/needs"
)

// special returns an entry that describes the next one: PAX records or a long name, of any
// size. It does not end the archive.
func special(t testing.TB, kind byte, content string) []byte {
	t.Helper()
	data := archive(t, file("PaxHeaders.0/x", content))
	data = data[:len(data)-1024]
	data[156] = kind
	copy(data[148:156], "        ")
	sum := 0
	for _, b := range data[:512] {
		sum += int(b)
	}
	copy(data[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return data
}

// record returns a PAX record, which begins with its own length.
func record(name, value string) string {
	rest := " " + name + "=" + value + "\n"
	n := len(rest) + 1
	for len(fmt.Sprint(n))+len(rest) != n {
		n = len(fmt.Sprint(n)) + len(rest)
	}
	return fmt.Sprint(n) + rest
}

// records returns many records without an effect, of this total size.
func records(size int) string {
	var b strings.Builder
	for i := 0; b.Len() < size-32; i++ {
		b.WriteString(record(fmt.Sprintf("SCHILY.xattr.user.%d", i), "x"))
	}
	return b.String()
}

// TestHostileAttributes checks file attributes in a layer that would give programs root's
// rights, mislead an overlay, or fill the disk.
func TestHostileAttributes(t *testing.T) {
	capability := "\x01\x00\x00\x02\xff\xff\xff\xff\x00\x00\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00"
	attributes := map[string]map[string]string{
		"rights":  {"SCHILY.xattr.security.capability": capability, "SCHILY.xattr.security.selinux": "system_u:object_r:bin_t:s0", "SCHILY.xattr.security.ima": "\x03\x02"},
		"overlay": {"SCHILY.xattr.trusted.overlay.redirect": "/etc", "SCHILY.xattr.trusted.overlay.metacopy": "", "SCHILY.xattr.trusted.overlay.whiteout": "y", "SCHILY.xattr.user.overlay.redirect": "/etc"},
		"others":  {"SCHILY.xattr.system.posix_acl_access": "\x02\x00\x00\x00", "LIBARCHIVE.xattr.user.x": "eA==", "SCHILY.xattr.": "x", "SCHILY.xattr.trusted.": "x", "SCHILY.acl.access": "user::rwx"},
		"huge":    {"SCHILY.xattr.user.huge": strings.Repeat("x", 1<<20-100)},
		"many":    {},
	}
	for i := range 10_000 {
		attributes["many"][fmt.Sprintf("SCHILY.xattr.trusted.%d", i)] = "x"
	}
	for _, own := range []bool{true, false} {
		if own && os.Geteuid() != 0 {
			continue
		}
		t.Run(fmt.Sprintf("dropped, own=%v", own), func(t *testing.T) {
			p := newProvider(t, "")
			p.own, p.layers.own = own, own
			var headers []tar.Header
			for name, all := range attributes {
				for _, h := range []tar.Header{dir(name), file(name+"/f", "1"), link(name+"/l", "f")} {
					h.PAXRecords = all
					headers = append(headers, h)
				}
			}
			top, _, err := composed(t, p, base{}, addLayers(t, p, archive(t, headers...))...)
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]string{".": "d"}
			for name := range attributes {
				want[name], want[name+"/f"], want[name+"/l"] = "d", "= 1", "-> f"
			}
			for name, kind := range contents(t, top) {
				if want[name] != kind {
					t.Errorf("%s is %q, want %q", name, kind, want[name])
				}
				delete(want, name)
				if n, err := unix.Llistxattr(filepath.Join(top, name), make([]byte, 4096)); err != nil || n != 0 {
					t.Errorf("%s has %d bytes of names of attributes, %v", name, n, err)
				}
			}
			if len(want) > 0 {
				t.Errorf("there are no %v", want)
			}
		})
	}

	plain := archive(t, file("f", "1"))
	after := func(parts ...[]byte) []byte { return append(bytes.Join(parts, nil), plain...) }
	var global []byte
	for range 301 {
		global = append(global, special(t, 'g', record("comment", "x"))...)
	}
	p := newProvider(t, "")
	p.layers.maxBytes, p.layers.maxEntries = 1<<20, 300
	for name, data := range map[string][]byte{
		"a value over a MiB":         after(special(t, 'x', record("SCHILY.xattr.user.huge", strings.Repeat("x", 2<<20)))),
		"records over a MiB":         after(special(t, 'x', records(2<<20))),
		"global records over a MiB":  after(special(t, 'g', records(2<<20))),
		"a name over a MiB":          after(special(t, 'L', strings.Repeat("n", 2<<20))),
		"a link over a MiB":          after(special(t, 'K', strings.Repeat("n", 2<<20))),
		"a length that is none":      after(special(t, 'x', "x SCHILY.xattr.user.x=y\n")),
		"a length beyond the end":    after(special(t, 'x', "999999999 SCHILY.xattr.user.x=y\n")),
		"a length that is too short": after(special(t, 'x', "3 SCHILY.xattr.user.x=y\n")),
		"a name with nothing":        after(special(t, 'x', record("", "y"))),
		"a path with a zero byte":    after(special(t, 'x', record("path", "f\x00g"))),
		"a path outside":             after(special(t, 'x', record("path", "../victim"))),
		"a size below zero":          after(special(t, 'x', record("size", "-1"))),
		"a size over all":            after(special(t, 'x', record("size", "9223372036854775807"))),
		"an owner over all":          after(special(t, 'x', record("uid", "4294967296"))),
		"too many that do nothing":   after(global),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := p.addLayer(t.Context(), "", "", opener(data)); !errors.Is(err, errHostile) {
				t.Errorf("got %v, want an error for a hostile archive", err)
			}
			if _, err := os.Stat(p.layers.layerDir(digestOf(data))); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the layer is there: %v", err)
			}
		})
	}
	if l := leftovers(p); len(l) != 0 {
		t.Errorf("left: %v", l)
	}
}

// TestBrokenStream checks that a broken stream is not blamed on its maker, and can be read
// again.
func TestBrokenStream(t *testing.T) {
	p, broken := newProvider(t, ""), errors.New("broken")
	open := func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(bytes.NewReader(archive(t, file("f", "1"))[:700]), breaks{broken})), nil
	}
	if _, err := p.addLayer(t.Context(), "", "", open); !errors.Is(err, broken) || errors.Is(err, errHostile) {
		t.Errorf("got %v", err)
	}
}

type breaks struct{ err error }

func (b breaks) Read([]byte) (int, error) { return 0, b.err }

// TestManyRecords checks that endless records take no more memory than one entry's.
func TestManyRecords(t *testing.T) {
	const block, times, room = 1 << 20, 48, 48 << 20
	kinds := map[string]byte{"of one entry": 'x'}
	if needs.Soak() { // the two take the same path
		kinds["global"] = 'g'
	}
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			p := newProvider(t, "")
			one, end := special(t, kind, records(block)), archive(t, file("f", "1"))
			heap := func() uint64 {
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return m.HeapAlloc
			}
			before, most := heap(), uint64(0)
			var parts []io.Reader
			for i := range times {
				parts = append(parts, bytes.NewReader(one))
				if i%8 == 7 {
					parts = append(parts, between(func() { most = max(most, heap()) }))
				}
			}
			open := func(context.Context) (io.ReadCloser, error) {
				return io.NopCloser(io.MultiReader(append(parts, bytes.NewReader(end))...)), nil
			}
			if _, err := p.addLayer(t.Context(), "", "", open); err != nil {
				t.Fatal(err)
			}
			if most > before+room {
				t.Errorf("%d MiB of records take %d MiB of memory", len(one)*times>>20, (most-before)>>20)
			}
			if most == 0 {
				t.Error("nothing was measured")
			}
		})
	}
}

// between is a reader of nothing that does something when it is its turn.
type between func()

func (b between) Read([]byte) (int, error) {
	b()
	return 0, io.EOF
}
