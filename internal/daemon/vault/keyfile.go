package vault

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/cove-sh/cove/internal/durable"
)

const (
	// EnvKey is the environment variable that may hold the keys instead of the file: one
	// key of 32 bytes in base64, or several separated by commas. The first one seals.
	EnvKey = "COVE_SECRETS_KEY"
	// KeyFile is the name of the key file in the state directory.
	KeyFile = "secrets.key"

	keySize   = 32
	keyIDSize = 8
	// maxKeys bounds the keys in the file. A finished rotation leaves one.
	maxKeys     = 16
	maxKeyBytes = 64 << 10
	keyPrefix   = "cove-secrets-key-1 "
	keyComment  = `# The keys that the values of Cove's secrets are encrypted with; the first one
# seals. Keep a copy somewhere safe: without it the secrets are lost. Whoever
# has this file and the store can read them.
`
)

type keyID [keyIDSize]byte

type key struct {
	id    keyID
	bytes [keySize]byte
}

func makeKey(b []byte) (key, error) {
	if len(b) != keySize {
		return key{}, fmt.Errorf("a key has %d bytes, not %d", keySize, len(b))
	}
	var k key
	copy(k.bytes[:], b)
	// The id distinguishes keys and reveals nothing about them.
	sum := sha256.Sum256(append([]byte("cove secrets key id\x00"), b...))
	copy(k.id[:], sum[:])
	return k, nil
}

func newKey() key {
	var b [keySize]byte
	rand.Read(b[:])
	k, _ := makeKey(b[:])
	return k
}

// Load returns the vault of a state directory. The keys come from environ, the value of
// [EnvKey], or if that is empty from the directory's key file, which is created if missing.
func Load(dir, environ string) (*Vault, error) {
	if environ != "" {
		keys, err := parseKeyList(environ)
		if err != nil {
			return nil, fmt.Errorf("%s: %w; it takes 32 bytes in base64, such as from \"openssl rand -base64 32\"", EnvKey, err)
		}
		return &Vault{keys: keys}, nil
	}
	file := filepath.Join(dir, KeyFile)
	keys, err := readKeyFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		// If several processes try to create the file, one succeeds and the others get ErrExist.
		if err = writeKeyFile(file, []key{newKey()}, durable.CreateFile); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		keys, err = readKeyFile(file)
	}
	if err != nil {
		return nil, err
	}
	return &Vault{file: file, keys: keys}, nil
}

func parseKeyList(list string) ([]key, error) {
	var keys []key
	for text := range strings.SplitSeq(list, ",") {
		b, err := decodeKey(strings.TrimSpace(text))
		if err != nil {
			return nil, err
		}
		k, err := makeKey(b)
		if err != nil {
			return nil, err
		}
		if keys = append(keys, k); len(keys) > maxKeys {
			return nil, fmt.Errorf("there are more than %d keys", maxKeys)
		}
	}
	return keys, nil
}

// decodeKey decodes base64 of either alphabet, with or without padding. Its error
// does not quote the text.
func decodeKey(text string) ([]byte, error) {
	text = strings.TrimRight(text, "=")
	text = strings.NewReplacer("-", "+", "_", "/").Replace(text)
	b, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		return nil, errors.New("a key is not base64")
	}
	return b, nil
}

func readKeyFile(file string) ([]key, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("key of secrets: %w", err)
	}
	defer f.Close()
	if err := checkPrivate(f); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyBytes))
	if err != nil {
		return nil, fmt.Errorf("key of secrets: %w", err)
	}
	defer Wipe(text)
	var keys []key
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		rest, ok := bytes.CutPrefix(line, []byte(keyPrefix))
		if !ok {
			return nil, fmt.Errorf("%s has a line that is not a key: restore the file from a backup", file)
		}
		more, err := parseKeyList(string(rest))
		if err != nil {
			return nil, fmt.Errorf("%s: %w: restore the file from a backup", file, err)
		}
		if keys = append(keys, more...); len(keys) > maxKeys {
			return nil, fmt.Errorf("%s has more than %d keys", file, maxKeys)
		}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s has no key: restore the file from a backup; if there is none, remove the file and rotate every secret", file)
	}
	return keys, nil
}

// checkPrivate refuses a key file that other users may have read or written.
func checkPrivate(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("key of secrets: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", f.Name())
	}
	if perm := info.Mode().Perm(); perm&0o077 != 0 {
		return fmt.Errorf("%s is open to other users (mode %04o): if nobody else can have read it, run \"chmod 600 %s\"", f.Name(), perm, f.Name())
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) != os.Geteuid() && stat.Uid != 0 {
		return fmt.Errorf("%s belongs to user %d, not to the one that runs the server (%d)", f.Name(), stat.Uid, os.Geteuid())
	}
	return nil
}

// writeKeyFile writes keys with one of the functions of package durable.
func writeKeyFile(file string, keys []key, write func(path string, data []byte) error) error {
	text := []byte(keyComment)
	defer func() { Wipe(text) }()
	for _, k := range keys {
		text = append(text, keyPrefix...)
		text = base64.StdEncoding.AppendEncode(text, k.bytes[:])
		text = append(text, '\n')
	}
	if err := write(file, text); err != nil {
		return fmt.Errorf("write key of secrets: %w", err)
	}
	return nil
}
