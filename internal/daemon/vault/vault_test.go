package vault

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

const canary = "canary-value-4711-Zx"

func load(t *testing.T, dir string) *Vault {
	t.Helper()
	v, err := Load(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func seal(t *testing.T, v *Vault, ref Ref, value string) []byte {
	t.Helper()
	sealed, err := v.Seal(ref, []byte(value))
	if err != nil {
		t.Fatal(err)
	}
	return sealed
}

func open(v *Vault, ref Ref, sealed []byte) (string, error) {
	var got string
	err := v.Open(ref, sealed, func(value []byte) error { got = string(value); return nil })
	return got, err
}

func TestSealOpen(t *testing.T) {
	dir := t.TempDir()
	v := load(t, dir)
	ref := Ref{"sec_1", 3}
	sealed := seal(t, v, ref, canary)
	if bytes.Contains(sealed, []byte(canary)) {
		t.Fatal("the value is in the sealed value")
	}
	if again := seal(t, v, ref, canary); bytes.Equal(sealed, again) {
		t.Error("sealing twice gives the same bytes")
	}
	// Another process reads the same key.
	if got, err := open(load(t, dir), ref, sealed); err != nil || got != canary {
		t.Fatalf("open: %q, %v", got, err)
	}
	for name, wrong := range map[string]Ref{
		"other secret":   {"sec_2", 3},
		"other version":  {"sec_1", 2},
		"shifted border": {"sec_13", 0},
	} {
		if _, err := open(v, wrong, sealed); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v, want ErrDamaged", name, err)
		}
	}
	for i := range sealed {
		bad := bytes.Clone(sealed)
		bad[i] ^= 1
		if got, err := open(v, ref, bad); err == nil {
			t.Errorf("byte %d changed: opened to %q", i, got)
		}
	}
	for n := range sealed {
		if _, err := open(v, ref, sealed[:n]); err == nil {
			t.Errorf("cut to %d bytes: opened", n)
		}
	}
}

func TestOpenWipes(t *testing.T) {
	v := load(t, t.TempDir())
	sealed := seal(t, v, Ref{"s", 1}, canary)
	var kept []byte
	boom := errors.New("boom")
	if err := v.Open(Ref{"s", 1}, sealed, func(value []byte) error { kept = value; return boom }); !errors.Is(err, boom) {
		t.Fatal(err)
	}
	if !bytes.Equal(kept, make([]byte, len(kept))) || len(kept) != len(canary) {
		t.Errorf("after Open the buffer holds %q", kept)
	}
}

func TestOpenWipesOnPanic(t *testing.T) {
	v := load(t, t.TempDir())
	sealed := seal(t, v, Ref{"s", 1}, canary)
	var kept []byte
	func() {
		defer func() { _ = recover() }()
		_ = v.Open(Ref{"s", 1}, sealed, func(value []byte) error { kept = value; panic("boom") })
	}()
	if bytes.Contains(kept, []byte("canary")) {
		t.Error("the value outlives a panic")
	}
}

func TestRotate(t *testing.T) {
	dir := t.TempDir()
	v := load(t, dir)
	store := map[Ref][]byte{}
	for _, id := range []string{"a", "b", "c"} {
		store[Ref{id, 1}] = seal(t, v, Ref{id, 1}, canary+id)
	}
	old, err := os.ReadFile(filepath.Join(dir, KeyFile))
	if err != nil {
		t.Fatal(err)
	}

	// A crash in the middle of a rotation: one value is sealed with the new key, and the
	// rest stays readable, in this process and the next.
	boom := errors.New("disk full")
	err = v.Rotate(t.Context(), func(_ context.Context, reseal func(Ref, []byte) ([]byte, error)) error {
		sealed, err := reseal(Ref{"a", 1}, store[Ref{"a", 1}])
		if err != nil {
			return err
		}
		store[Ref{"a", 1}] = sealed
		return boom
	})
	if !errors.Is(err, boom) {
		t.Fatal(err)
	}
	for _, vault := range []*Vault{v, load(t, dir)} {
		for ref, sealed := range store {
			if got, err := open(vault, ref, sealed); err != nil || got != canary+ref.Secret {
				t.Errorf("%v after half a rotation: %q, %v", ref, got, err)
			}
		}
	}
	if !v.Current(store[Ref{"a", 1}]) || v.Current(store[Ref{"b", 1}]) {
		t.Error("Current does not tell which is sealed with the new key")
	}

	all := func(_ context.Context, reseal func(Ref, []byte) ([]byte, error)) error {
		for ref, sealed := range store {
			again, err := reseal(ref, sealed)
			if err != nil {
				return err
			}
			store[ref] = again
		}
		return nil
	}
	if err := v.Rotate(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	for ref, sealed := range store {
		if got, err := open(load(t, dir), ref, sealed); err != nil || got != canary+ref.Secret {
			t.Errorf("%v after rotation: %q, %v", ref, got, err)
		}
	}
	now, err := os.ReadFile(filepath.Join(dir, KeyFile))
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(now, []byte(keyPrefix)); n != 1 {
		t.Errorf("%d keys are left", n)
	}
	for line := range bytes.Lines(old) {
		if bytes.HasPrefix(line, []byte(keyPrefix)) && bytes.Contains(now, line) {
			t.Error("the old key is left in the file")
		}
	}
	if info, err := os.Stat(filepath.Join(dir, KeyFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestUnfinishedRotations(t *testing.T) {
	v := load(t, t.TempDir())
	for range maxKeys + 3 {
		err := v.Rotate(t.Context(), func(context.Context, func(Ref, []byte) ([]byte, error)) error { return errors.New("no") })
		if err == nil {
			t.Fatal("no error")
		}
	}
	if len(v.keys) > maxKeys {
		t.Errorf("%d keys", len(v.keys))
	}
}

func TestKeyFromEnvironment(t *testing.T) {
	one := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{1}, 32))
	two := base64.RawURLEncoding.EncodeToString(bytes.Repeat([]byte{0xfe}, 32))
	dir := t.TempDir()
	v, err := Load(dir, one)
	if err != nil {
		t.Fatal(err)
	}
	sealed := seal(t, v, Ref{"s", 1}, canary)
	if _, err := os.Stat(filepath.Join(dir, KeyFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a key file was made: %v", err)
	}
	both, err := Load(dir, two+", "+one)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := open(both, Ref{"s", 1}, sealed); err != nil || got != canary {
		t.Fatalf("with the old key second: %q, %v", got, err)
	}
	err = both.Rotate(t.Context(), func(_ context.Context, reseal func(Ref, []byte) ([]byte, error)) (err error) {
		sealed, err = reseal(Ref{"s", 1}, sealed)
		return err
	})
	if err != nil || !both.Current(sealed) {
		t.Errorf("rotate: %v, current %v", err, both.Current(sealed))
	}
	if _, err := open(v, Ref{"s", 1}, sealed); !errors.Is(err, ErrKeyMissing) || !strings.Contains(err.Error(), EnvKey) {
		t.Errorf("with the wrong key: %v", err)
	}
	for _, bad := range []string{"x", one + "," + "", "!!!", base64.StdEncoding.EncodeToString(make([]byte, 31)), one + "\n" + one} {
		_, err := Load(dir, bad)
		if err == nil {
			t.Errorf("%q was taken", bad)
		} else if len(bad) > 8 && strings.Contains(err.Error(), bad[:8]) {
			t.Errorf("the error shows the key: %v", err)
		}
	}
}

func TestLostKey(t *testing.T) {
	dir := t.TempDir()
	sealed := seal(t, load(t, dir), Ref{"s", 1}, canary)
	if err := os.Remove(filepath.Join(dir, KeyFile)); err != nil {
		t.Fatal(err)
	}
	_, err := open(load(t, dir), Ref{"s", 1}, sealed)
	if !errors.Is(err, ErrKeyMissing) || !strings.Contains(err.Error(), KeyFile) {
		t.Errorf("got %v", err)
	}
}

func TestKeyFileIsRefused(t *testing.T) {
	good := keyPrefix + base64.StdEncoding.EncodeToString(make([]byte, 32)) + "\n"
	for name, test := range map[string]struct {
		make func(file string) error
		want string
	}{
		"group may read":  {func(f string) error { return errors.Join(os.WriteFile(f, []byte(good), 0o600), os.Chmod(f, 0o640)) }, "chmod 600"},
		"others may read": {func(f string) error { return errors.Join(os.WriteFile(f, []byte(good), 0o600), os.Chmod(f, 0o604)) }, "chmod 600"},
		"empty":           {func(f string) error { return os.WriteFile(f, nil, 0o600) }, "no key"},
		"garbage":         {func(f string) error { return os.WriteFile(f, []byte("hello\n"), 0o600) }, "not a key"},
		"short key":       {func(f string) error { return os.WriteFile(f, []byte(keyPrefix+"AAAA\n"), 0o600) }, "32 bytes"},
		"directory":       {func(f string) error { return os.Mkdir(f, 0o700) }, "regular"},
		"fifo":            {func(f string) error { return syscall.Mkfifo(f, 0o600) }, "regular"},
		"symbolic link":   {func(f string) error { return os.Symlink("/etc/passwd", f) }, "symbolic"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := test.make(filepath.Join(dir, KeyFile)); err != nil {
				t.Fatal(err)
			}
			if _, err := Load(dir, ""); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want one with %q", err, test.want)
			}
		})
	}
}

// TestKeyFileIsMadeOnce checks that daemons which start at the same time agree on the key.
func TestKeyFileIsMadeOnce(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	vaults := make([]*Vault, 16)
	for i := range vaults {
		wg.Go(func() { vaults[i], _ = Load(dir, "") })
	}
	wg.Wait()
	for i, v := range vaults {
		if v == nil || v.keys[0] != vaults[0].keys[0] {
			t.Errorf("%d has another key", i)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Errorf("left behind: %v, %v", files, err)
	}
}

func TestProviders(t *testing.T) {
	list := Providers()
	if len(list) != 19 {
		t.Errorf("%d providers", len(list))
	}
	for i, p := range list {
		if i > 0 && p.Name <= list[i-1].Name {
			t.Errorf("%s is not in order", p.Name)
		}
		done, err := Complete(sandbox.CreateSecretRequest{Name: "x", Value: sandbox.NewSecretValue("v"), Provider: p.Name})
		if err != nil {
			t.Errorf("%s: %v", p.Name, err)
			continue
		}
		if *done.Auth != p.Auth || len(done.Hosts) != len(p.Hosts) {
			t.Errorf("%s: %+v", p.Name, done)
		}
		one, err := NewPlaceholder(p.Name)
		two, _ := NewPlaceholder(p.Name)
		if err != nil || one == two || !strings.HasPrefix(one, strings.TrimSuffix(p.TokenShape, "...")) || len(one) < 24 {
			t.Errorf("%s: placeholders %q, %q, %v", p.Name, one, two, err)
		}
		if p.Env == "" || p.Title == "" || strings.Trim(one, base64url) != "" {
			t.Errorf("%+v, %s", p, one)
		}
	}
	own, err := NewPlaceholder("")
	if err != nil || len(own) != 48 || !strings.HasPrefix(own, "cove_") {
		t.Errorf("%q, %v", own, err)
	}
	if _, err := NewPlaceholder("nobody"); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Error(err)
	}
	list[0].Hosts[0] = "evil.example"
	if Providers()[0].Hosts[0] == "evil.example" {
		t.Error("a caller can change the presets")
	}
}

func TestComplete(t *testing.T) {
	value := sandbox.NewSecretValue(canary)
	base := func(change func(*sandbox.CreateSecretRequest)) sandbox.CreateSecretRequest {
		r := sandbox.CreateSecretRequest{Name: "key", Value: value, Hosts: []string{"api.example.com"}}
		change(&r)
		return r
	}
	got, err := Complete(base(func(r *sandbox.CreateSecretRequest) {
		r.Hosts = []string{"API.Example.com.", "api.example.com", "*.Example.org", "192.0.2.7", "2001:DB8::1", "xn--bcher-kva.example"}
	}))
	want := "api.example.com *.example.org 192.0.2.7 2001:db8::1 xn--bcher-kva.example"
	if err != nil || strings.Join(got.Hosts, " ") != want || *got.Auth != bearer {
		t.Errorf("got %v, %+v, %v", got.Hosts, got.Auth, err)
	}
	host := func(h string) func(*sandbox.CreateSecretRequest) {
		return func(r *sandbox.CreateSecretRequest) { r.Hosts = []string{h} }
	}
	auth := func(a sandbox.SecretAuth) func(*sandbox.CreateSecretRequest) {
		return func(r *sandbox.CreateSecretRequest) { r.Auth = &a }
	}
	val := func(v string) func(*sandbox.CreateSecretRequest) {
		return func(r *sandbox.CreateSecretRequest) { r.Value = sandbox.NewSecretValue(v) }
	}
	for name, test := range map[string]struct {
		change func(*sandbox.CreateSecretRequest)
		want   string
	}{
		"no name":            {func(r *sandbox.CreateSecretRequest) { r.Name = "" }, "name"},
		"name with slash":    {func(r *sandbox.CreateSecretRequest) { r.Name = "a/b" }, "name"},
		"long name":          {func(r *sandbox.CreateSecretRequest) { r.Name = strings.Repeat("a", 64) }, "name"},
		"no value":           {val(""), "value"},
		"huge value":         {val(strings.Repeat("x", sandbox.MaxSecretBytes+1)), "65537"},
		"line break":         {val(canary + "\n"), "line break"},
		"header injection":   {val(canary + "\r\nX: y"), "line break"},
		"zero byte":          {val(canary + "\x00"), "control"},
		"space at the end":   {val(canary + " "), "white space"},
		"unknown provider":   {func(r *sandbox.CreateSecretRequest) { r.Provider = "nobody" }, "anthropic"},
		"no hosts":           {func(r *sandbox.CreateSecretRequest) { r.Hosts = nil }, "provider"},
		"all hosts and one":  {func(r *sandbox.CreateSecretRequest) { r.Hosts = []string{sandbox.AnyHost, "a.example"} }, "not a domain"},
		"all of com":         {host("*.com"), "anybody"},
		"all of co.uk":       {host("*.co.uk"), "anybody"},
		"all of github.io":   {host("*.github.io"), "anybody"},
		"inner star":         {host("api.*.example.com"), "not a domain"},
		"range":              {host("10.0.0.0/8"), "range"},
		"url":                {host("https://example.com/"), "scheme"},
		"port":               {host("example.com:443"), "port"},
		"user":               {host("me@example.com"), "not a domain"},
		"short address":      {host("127.1"), "address"},
		"octal address":      {host("0177.0.0.1"), "address"},
		"hex address":        {host("0x7f.0.0.1"), "address"},
		"decimal address":    {host("2130706433"), "address"},
		"mapped address":     {host("::ffff:1.2.3.4"), "plain form"},
		"zone":               {host("fe80::1%eth0"), "plain form"},
		"empty label":        {host("a..b"), "not a domain"},
		"control":            {host("a\nb.example"), "not a domain"},
		"other letters":      {host("bücher.example"), "ASCII"},
		"wildcard address":   {host("*.2.3.4"), "address"},
		"too many hosts":     {func(r *sandbox.CreateSecretRequest) { r.Hosts = make([]string, sandbox.MaxSecretHosts+1) }, "at most"},
		"unknown auth":       {auth(sandbox.SecretAuth{Type: "oauth"}), "header, basic or query"},
		"bad header":         {auth(sandbox.SecretAuth{Type: "header", Name: "X Y"}), "auth.name"},
		"host header":        {auth(sandbox.SecretAuth{Type: "header", Name: "Host"}), "Host"},
		"prefix with break":  {auth(sandbox.SecretAuth{Type: "header", Prefix: "a\r\nb"}), "auth.prefix"},
		"user with colon":    {auth(sandbox.SecretAuth{Type: "basic", User: "a:b"}), "colon"},
		"query without name": {auth(sandbox.SecretAuth{Type: "query"}), "auth.name"},
		"query with prefix":  {auth(sandbox.SecretAuth{Type: "query", Name: "k", Prefix: "p"}), "query"},
	} {
		_, err := Complete(base(test.change))
		if sandbox.CodeOf(err) != sandbox.CodeInvalid && sandbox.CodeOf(err) != sandbox.CodeTooLarge {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %q does not speak of %q", name, err, test.want)
		}
		if strings.Contains(err.Error(), canary) {
			t.Errorf("%s: the error tells the value", name)
		}
	}
}

func FuzzOpen(f *testing.F) {
	v, err := Load(f.TempDir(), "")
	if err != nil {
		f.Fatal(err)
	}
	sealed, err := v.Seal(Ref{"s", 1}, []byte(canary))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sealed)
	f.Add(sealed[:overhead])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := open(v, Ref{"s", 1}, b); err == nil && !bytes.Equal(b, sealed) {
			t.Errorf("%x opened to %q", b, got)
		}
	})
}

func FuzzHost(f *testing.F) {
	for _, h := range []string{"api.example.com", "*.example.com", "1.2.3.4", "::1", "a..b", "*", "é"} {
		f.Add(h)
	}
	f.Fuzz(func(t *testing.T, h string) {
		clean, err := checkHost(h)
		if err != nil {
			return
		}
		if again, err := checkHost(clean); err != nil || again != clean {
			t.Errorf("%q became %q and then %q, %v", h, clean, again, err)
		}
		if strings.ContainsAny(clean, " /@?#\r\n\x00%\\") || strings.ToLower(clean) != clean {
			t.Errorf("%q passed as %q", h, clean)
		}
	})
}
