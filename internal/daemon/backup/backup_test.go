package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/store/sqlite"
	"github.com/cove-sh/cove/internal/daemon/store/sqlite/sqlitetest"
	"github.com/cove-sh/cove/sandbox"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, data string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	must(t, os.WriteFile(path, []byte(data), 0o600))
}

// state makes a state directory with something of every kind, and opens its database.
func state(t *testing.T) (dir string, s *sqlite.Store) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "state")
	must(t, os.Mkdir(dir, 0o700))
	sqlitetest.New(t, filepath.Join(dir, database))
	s, err := sqlite.Open(t.Context(), filepath.Join(dir, database))
	must(t, err)
	t.Cleanup(func() { s.Close() })
	now := time.Now().UTC()
	for id, st := range map[string]sandbox.State{"sbx-runs": sandbox.StateRunning, "sbx-rests": sandbox.StatePaused} {
		r := store.Record{Sandbox: sandbox.Sandbox{ID: id, Team: "red", State: st, CreatedAt: now, LastActiveAt: now}, Held: true}
		if st == sandbox.StatePaused {
			r.Checkpoint = "ckp-rests"
		}
		must(t, s.CreateSandbox(t.Context(), r, store.Quota{}))
	}
	must(t, s.CreateVolume(t.Context(), store.VolumeRecord{Team: "red", Volume: sandbox.Volume{ID: "vol-a", Name: "data", SizeMiB: 1, CreatedAt: now}}, store.Quota{}))
	for name, data := range map[string]string{
		"secrets.key": "key", "preview-links.key": "links", "serve.log": "log", "engine/network-ca.pem": "ca", "engine/installation": "id", "volumes/installation": "id",
		"engine/bin/cove-1": "program", "engine/bin/cove-2": "other", "engine/agent/d/agent": "agent", "engine/cells/sbx-runs/lock": "",
		"engine/checkpoints/ckp-rests/manifest.json": `{"program":"cove-1"}`, "engine/checkpoints/ckp-rests/pages.img": "pages" + strings.Repeat("\x00", 3*hole) + "end",
		"engine/checkpoints/ckp-gone/manifest.json": "{}", "orphans/x/about.json": "{}",
		"templates/layers/l/f": "shared", "templates/tmp/t": "half", "volumes/vol-a/data/dir/file": "precious", "volumes/vol-b/data/file": "nobody's",
	} {
		write(t, filepath.Join(dir, name), data)
	}
	must(t, os.MkdirAll(filepath.Join(dir, "templates/rootfs/r"), 0o755))
	must(t, os.Link(filepath.Join(dir, "templates/layers/l/f"), filepath.Join(dir, "templates/rootfs/r/f")))
	data := filepath.Join(dir, "volumes/vol-a/data")
	must(t, os.Chmod(data, 0o777|os.ModeSticky))
	must(t, os.Symlink("/etc/passwd", filepath.Join(data, "out")))
	must(t, os.Link(filepath.Join(data, "dir/file"), filepath.Join(data, "again")))
	must(t, os.Chmod(filepath.Join(data, "dir/file"), 0o640))
	must(t, os.Chmod(filepath.Join(data, "dir"), 0o555))
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(data, "dir"), 0o700) })
	must(t, unix.Mkfifo(filepath.Join(data, "pipe"), 0o600))
	_ = unix.Setxattr(filepath.Join(data, "again"), "user.mark", []byte("a\x00b"), 0) // where the file system has them
	return dir, s
}

// TestBackupAndRestore checks that a backup of an open database holds exactly what the
// database names, and restores to the same directory.
func TestBackupAndRestore(t *testing.T) {
	dir, _ := state(t)
	file := filepath.Join(t.TempDir(), "b.tar.zst")
	config := filepath.Join(t.TempDir(), "cove.yaml")
	write(t, config, "listen: off\n")
	o := Options{StateDir: dir, File: file, Config: config, Version: "1.2.3", Warn: func(s string) { t.Error(s) }}
	must(t, Write(t.Context(), o))
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file: %v, %v", info, err)
	}
	if err := Write(t.Context(), o); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("a second one: %v", err)
	}
	for _, in := range []string{dir, filepath.Join(dir, "engine/checkpoints")} {
		if left, err := filepath.Glob(filepath.Join(in, workPrefix+"*")); err != nil || len(left) != 0 {
			t.Errorf("left are %v, %v", left, err)
		}
	}
	if _, err := Restore(t.Context(), file, dir, nil); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("into a full directory: %v", err)
	}
	other := t.TempDir()
	if _, err := Restore(t.Context(), file, other, nil); sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), dir) {
		t.Errorf("elsewhere: %v", err)
	}
	old := dir + ".old"
	must(t, os.Rename(dir, old))
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(old, "volumes/vol-a/data/dir"), 0o700) })
	must(t, os.Mkdir(dir, 0o700))
	about, err := Restore(t.Context(), file, dir, nil)
	must(t, err)
	if about.Version != "1.2.3" || !about.Templates || time.Since(about.CreatedAt) > time.Hour {
		t.Errorf("it is %+v", about)
	}
	for name, want := range map[string]string{
		"secrets.key": "key", "engine/network-ca.pem": "ca", "engine/bin/cove-1": "program", "engine/agent/d/agent": "agent", "config.yaml": "listen: off\n",
		"engine/checkpoints/ckp-rests/pages.img": "pages" + strings.Repeat("\x00", 3*hole) + "end",
		"volumes/vol-a/data/dir/file":            "precious", "templates/rootfs/r/f": "shared", "volumes/installation": "id",
	} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s holds %.50q, %v", name, got, err)
		}
	}
	for _, name := range []string{"serve.log", "orphans", "engine/cells", "engine/checkpoints/ckp-gone", "engine/bin/cove-2", "volumes/vol-b", "templates/tmp", "volumes/vol-a/data/pipe", aboutName} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s is there", name)
		}
	}
	data := filepath.Join(dir, "volumes/vol-a/data")
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(data, "dir"), 0o700) })
	for name, mode := range map[string]os.FileMode{".": os.ModeDir | os.ModeSticky | 0o777, "dir": os.ModeDir | 0o555, "dir/file": 0o640} {
		if info, err := os.Lstat(filepath.Join(data, name)); err != nil || info.Mode() != mode {
			t.Errorf("%s has mode %v, %v", name, info.Mode(), err)
		}
	}
	if target, err := os.Readlink(filepath.Join(data, "out")); err != nil || target != "/etc/passwd" {
		t.Errorf("the link leads to %q, %v", target, err)
	}
	for _, two := range [][2]string{{"volumes/vol-a/data/again", "volumes/vol-a/data/dir/file"}, {"templates/layers/l/f", "templates/rootfs/r/f"}} {
		a, err := os.Stat(filepath.Join(dir, two[0]))
		must(t, err)
		if b, err := os.Stat(filepath.Join(dir, two[1])); err != nil || !os.SameFile(a, b) {
			t.Errorf("%v are two files, %v", two, err)
		}
	}
	buf := make([]byte, 10)
	if n, err := unix.Getxattr(filepath.Join(old, "volumes/vol-a/data/again"), "user.mark", buf); err == nil {
		if m, err := unix.Getxattr(filepath.Join(data, "again"), "user.mark", buf); err != nil || m != n {
			t.Errorf("the attribute has %d bytes, %v", m, err)
		}
	}
	s, err := sqlite.Open(t.Context(), filepath.Join(dir, database))
	must(t, err)
	defer s.Close()
	r, err := s.Sandbox(t.Context(), "sbx-runs")
	must(t, err)
	if r.State != sandbox.StateFailed || !strings.Contains(r.Reason, "backup") || r.EndedAt == nil || !r.Held {
		t.Errorf("what ran is %+v", r)
	}
	if r, err := s.Sandbox(t.Context(), "sbx-rests"); err != nil || r.State != sandbox.StatePaused || r.Checkpoint != "ckp-rests" {
		t.Errorf("what was paused is %+v, %v", r, err)
	}
}

// TestMissingCheckpoint checks that a checkpoint which the database names and nothing has
// is reported, and does not prevent the backup.
func TestMissingCheckpoint(t *testing.T) {
	dir, _ := state(t)
	must(t, os.RemoveAll(filepath.Join(dir, "engine/checkpoints/ckp-rests")))
	var warned string
	must(t, Write(t.Context(), Options{StateDir: dir, File: filepath.Join(t.TempDir(), "b"), Warn: func(s string) { warned += s }}))
	if !strings.Contains(warned, "ckp-rests") {
		t.Errorf("warned %q, want the checkpoint named", warned)
	}
}

// TestUnwrittenCheckpoint does the same for a checkpoint whose memory is still missing,
// which a socket shows.
func TestUnwrittenCheckpoint(t *testing.T) {
	dir, _ := state(t)
	l, err := net.Listen("unix", filepath.Join(dir, "engine/checkpoints/ckp-rests/pages.sock"))
	must(t, err)
	backUp := func() (warned string) {
		must(t, Write(t.Context(), Options{StateDir: dir, File: filepath.Join(t.TempDir(), "b"), Warn: func(s string) { warned += s }}))
		return warned
	}
	if warned := backUp(); !strings.Contains(warned, "ckp-rests") {
		t.Errorf("warned %q, want the checkpoint named", warned)
	}
	must(t, l.Close()) // removes the socket
	if warned := backUp(); warned != "" {
		t.Errorf("warned once it is written: %q", warned)
	}
}

func TestNothingToBackUp(t *testing.T) {
	elsewhere := t.TempDir()
	if err := os.MkdirAll(filepath.Join(elsewhere, "engine"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(elsewhere, "engine", "installation"), []byte("id\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(t.Context(), Options{StateDir: elsewhere, File: filepath.Join(t.TempDir(), "b")}); sandbox.CodeOf(err) != sandbox.CodeUnsupported || !strings.Contains(err.Error(), "pg_dump") {
		t.Errorf("records in PostgreSQL: %v", err)
	}
	if err := Write(t.Context(), Options{StateDir: t.TempDir(), File: filepath.Join(t.TempDir(), "b")}); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("of an empty directory: %v", err)
	}
	dir, _ := state(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	out := t.TempDir()
	if err := Write(ctx, Options{StateDir: dir, File: filepath.Join(out, "b")}); err == nil {
		t.Error("a cancelled backup succeeded")
	}
	if left, err := os.ReadDir(out); err != nil || len(left) != 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// forge makes an archive of entries; the content of regular ones is their name. change may
// damage what is written before its sum is computed.
func forge(t *testing.T, about About, entries ...tar.Header) []byte {
	t.Helper()
	var raw, out bytes.Buffer
	hash := sha256.New()
	w := tar.NewWriter(io.MultiWriter(&raw, hash))
	put := func(h tar.Header, data string) {
		t.Helper()
		h.Format = tar.FormatPAX
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(data))
		}
		must(t, w.WriteHeader(&h))
		_, err := io.WriteString(w, data[:h.Size])
		must(t, err)
	}
	data, err := json.Marshal(about)
	must(t, err)
	put(tar.Header{Name: aboutName, Typeflag: tar.TypeReg}, string(data))
	for _, h := range entries {
		put(h, h.Name)
	}
	data, err = json.Marshal(sum{hex.EncodeToString(hash.Sum(nil))})
	must(t, err)
	put(tar.Header{Name: sumName, Typeflag: tar.TypeReg}, string(data))
	must(t, w.Close())
	z, err := zstd.NewWriter(&out)
	must(t, err)
	_, err = raw.WriteTo(z)
	must(t, err)
	must(t, z.Close())
	return out.Bytes()
}

// TestHostileArchives checks that no archive makes anything outside the directory, follows
// a link, or leaves anything when it is refused.
func TestHostileArchives(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "state")
	must(t, os.Mkdir(dir, 0o700))
	about := About{Format: format, StateDir: dir}
	d := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o700} }
	f := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600} }
	l := func(name, to string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
	}
	hard := func(name, to string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to} }
	volume := []tar.Header{d("volumes/"), d("volumes/vol-a/"), d("volumes/vol-a/data/")}
	with := func(more ...tar.Header) []tar.Header {
		return append(append([]tar.Header{f(database)}, volume...), more...)
	}
	for name, entries := range map[string][]tar.Header{
		"up":                     {f("../x")},
		"up inside":              with(f("volumes/vol-a/data/../../../x")),
		"absolute":               {f("/tmp/x")},
		"unknown":                {f(database), f(".ssh")},
		"unknown directory":      {f(database), d("home/")},
		"no directory":           {f(database), f("volumes/vol-a/x")},
		"a key that is a link":   {f(database), l("secrets.key", "/etc/shadow")},
		"a directory as link":    {f(database), l("volumes", "/tmp")},
		"a volume as link":       {f(database), d("volumes/"), l("volumes/vol-a", "/tmp")},
		"through a link":         with(l("volumes/vol-a/data/l", "/tmp"), f("volumes/vol-a/data/l/x")),
		"over a link":            with(l("volumes/vol-a/data/l", "/tmp/x"), f("volumes/vol-a/data/l")),
		"a directory over it":    with(l("volumes/vol-a/data/l", "/tmp"), d("volumes/vol-a/data/l/"), f("volumes/vol-a/data/l/x")),
		"hard link to a key":     with(f("secrets.key"), hard("volumes/vol-a/data/k", "secrets.key")),
		"hard link out":          with(hard("volumes/vol-a/data/k", "../../etc/passwd")),
		"hard link to a link":    with(l("volumes/vol-a/data/l", "/etc/passwd"), hard("volumes/vol-a/data/k", "volumes/vol-a/data/l")),
		"hard link between":      with(f("volumes/vol-a/data/f"), d("volumes/vol-b/"), d("volumes/vol-b/data/"), hard("volumes/vol-b/data/f", "volumes/vol-a/data/f")),
		"a device":               with(tar.Header{Name: "volumes/vol-a/data/null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}),
		"twice":                  {f(database), f(database)},
		"a directory twice":      with(d("volumes/vol-a/")),
		"no database":            volume,
		"a database that is not": {f(database)},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "b")
			must(t, os.WriteFile(file, forge(t, about, entries...), 0o600))
			if _, err := Restore(t.Context(), file, dir, nil); sandbox.CodeOf(err) != sandbox.CodeInvalid {
				t.Errorf("got %v", err)
			}
			for _, at := range []string{dir, top} {
				if left, err := os.ReadDir(at); err != nil || len(left) > 1 || len(left) == 1 && left[0].Name() != "state" {
					t.Errorf("left are %v, %v", left, err)
				}
			}
		})
	}
}

// TestDamagedArchives checks that a truncated or changed archive is refused, wherever the
// damage is.
func TestDamagedArchives(t *testing.T) {
	dir, s := state(t)
	file := filepath.Join(t.TempDir(), "b")
	must(t, Write(t.Context(), Options{StateDir: dir, File: file, Version: "1"}))
	must(t, s.Close())
	whole, err := os.ReadFile(file)
	must(t, err)
	z, err := zstd.NewReader(bytes.NewReader(whole))
	must(t, err)
	defer z.Close()
	plain, err := io.ReadAll(z)
	must(t, err)
	zip := func(data []byte) []byte {
		w, err := zstd.NewWriter(nil)
		must(t, err)
		return w.EncodeAll(data, nil)
	}
	at := bytes.Index(plain, []byte("precious"))
	changed := bytes.Clone(plain)
	changed[at] ^= 1
	later := About{Format: format + 1, StateDir: dir}
	must(t, os.Chmod(filepath.Join(dir, "volumes/vol-a/data/dir"), 0o700))
	must(t, os.RemoveAll(dir))
	must(t, os.Mkdir(dir, 0o700))
	for name, c := range map[string]struct {
		data []byte
		code sandbox.Code
	}{
		"empty":             {nil, sandbox.CodeInvalid},
		"text":              {[]byte("no archive"), sandbox.CodeInvalid},
		"half":              {whole[:len(whole)/2], sandbox.CodeInvalid},
		"without its sum":   {zip(plain[:at/512*512]), sandbox.CodeInvalid},
		"a byte of a file":  {zip(changed), sandbox.CodeInvalid},
		"of a later format": {forge(t, later), sandbox.CodeUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			bad := filepath.Join(t.TempDir(), "b")
			must(t, os.WriteFile(bad, c.data, 0o600))
			if _, err := Restore(t.Context(), bad, dir, nil); sandbox.CodeOf(err) != c.code {
				t.Errorf("got %v", err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
				t.Errorf("left are %v, %v", left, err)
			}
		})
	}
	_, err = Restore(t.Context(), file, dir, nil)
	must(t, err)
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, "volumes/vol-a/data/dir"), 0o700) })
}
