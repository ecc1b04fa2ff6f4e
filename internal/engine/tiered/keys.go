package tiered

import (
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/crypto/chacha20poly1305"
)

// KeySize is the size of the key from which all others are derived, in bytes.
const KeySize = 32

// errSealed means that an object is not what this installation has stored under its name.
var errSealed = errors.New("the object was changed, or is of another installation")

// A sealed object is
//
//	format (1) | nonce (24) | ciphertext and tag
//
// by XChaCha20-Poly1305, whose nonces are long enough to be random. The name of the object
// is authenticated with the ciphertext, so one object cannot stand in for another.
const (
	sealFormat = 1
	overhead   = 1 + chacha20poly1305.NonceSizeX + chacha20poly1305.Overhead
)

// sumSize is the size of a chunk's name, in bytes.
const sumSize = sha256.Size

// sum is the name of a chunk: a keyed hash of its content.
type sum [sumSize]byte

// scope has the keys of one team, or of what all teams share.
type scope struct {
	naming  []byte
	cutting []byte // see [splitter]
	aead    cipher.AEAD
}

// keyring derives the keys of scopes. It is safe for concurrent use.
type keyring struct {
	master []byte
	mu     sync.Mutex
	scopes map[string]*scope // guarded by mu
}

func newKeyring(master []byte) (*keyring, error) {
	if len(master) != KeySize {
		return nil, fmt.Errorf("the key of the object store has %d bytes, not %d", len(master), KeySize)
	}
	// The caller wipes its copy, and keys of further teams are derived later.
	return &keyring{master: slices.Clone(master), scopes: map[string]*scope{}}, nil
}

// of returns the keys of a team; those of "" are for manifests and what all teams share.
func (k *keyring) of(team string) (*scope, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.scopes[team]; s != nil {
		return s, nil
	}
	naming, err := hkdf.Key(sha256.New, k.master, nil, "cove objects: names\x00"+team, KeySize)
	if err != nil {
		return nil, err
	}
	cutting, err := hkdf.Key(sha256.New, k.master, nil, "cove objects: cuts\x00"+team, KeySize)
	if err != nil {
		return nil, err
	}
	content, err := hkdf.Key(sha256.New, k.master, nil, "cove objects: content\x00"+team, KeySize)
	if err != nil {
		return nil, err
	}
	aead, err := chacha20poly1305.NewX(content)
	if err != nil {
		return nil, err
	}
	k.scopes[team] = &scope{naming: naming, cutting: cutting, aead: aead}
	return k.scopes[team], nil
}

// sum returns the name of content.
func (s *scope) sum(content []byte) (out sum) {
	h := hmac.New(sha256.New, s.naming)
	h.Write(content)
	h.Sum(out[:0])
	return out
}

// name returns the name of something that everybody could guess the name of, in
// hexadecimal.
func (s *scope) name(of string) string {
	n := s.sum([]byte("name\x00" + of))
	return hex.EncodeToString(n[:])
}

func (s *scope) seal(object string, plain []byte) []byte {
	out := make([]byte, 1+chacha20poly1305.NonceSizeX, overhead+len(plain))
	out[0] = sealFormat
	rand.Read(out[1:])
	return s.aead.Seal(out, out[1:], plain, []byte(object))
}

func (s *scope) open(object string, sealed []byte) ([]byte, error) {
	if len(sealed) < overhead || sealed[0] != sealFormat {
		return nil, errSealed
	}
	body := sealed[1:]
	plain, err := s.aead.Open(nil, body[:chacha20poly1305.NonceSizeX], body[chacha20poly1305.NonceSizeX:], []byte(object))
	if err != nil {
		return nil, errSealed
	}
	return plain, nil
}
