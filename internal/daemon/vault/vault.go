// Package vault keeps the values of secrets: sealed at rest, and in the clear
// only inside a function that is given one in a buffer wiped afterwards. It
// also knows the presets of well-known services and what their placeholders
// look like.
package vault

import (
	"context"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/crypto/chacha20poly1305"
)

// A sealed value is
//
//	format (1) | key id (8) | nonce (24) | ciphertext and tag
//
// by XChaCha20-Poly1305, whose nonces are long enough to be drawn at random.
// The head, the secret's id and its version are authenticated beside the
// ciphertext: a value cannot be put in another secret's place, nor an old one
// in that of a new.
const (
	sealFormat = 1
	headSize   = 1 + keyIDSize
	overhead   = headSize + chacha20poly1305.NonceSizeX + chacha20poly1305.Overhead
	// maxValue bounds what is sealed and opened; the domain's bound is lower.
	maxValue = 1 << 20
)

// ErrDamaged is of a sealed value that is not what was sealed for this secret
// and version: it was changed, cut, or taken from another secret.
var ErrDamaged = errors.New("the sealed value is damaged or belongs to another secret: rotate the secret with a new value")

// ErrKeyMissing is of a value that was sealed with a key which is not there.
var ErrKeyMissing = errors.New("the key that sealed this value is not there")

// Ref names what a value belongs to.
type Ref struct {
	// Secret is the secret's id.
	Secret string
	// Version is the secret's version.
	Version int
}

func (r Ref) associated(head []byte) []byte {
	ad := append([]byte("cove secret value\x00"), head...)
	ad = binary.BigEndian.AppendUint32(ad, uint32(len(r.Secret)))
	ad = append(ad, r.Secret...)
	return binary.BigEndian.AppendUint64(ad, uint64(r.Version))
}

// Vault seals and opens values. It may be used by several goroutines.
type Vault struct {
	// file is where the keys are, "" if they come from the environment.
	file string

	// rotating lets one rotation run at a time.
	rotating sync.Mutex

	mu   sync.RWMutex
	keys []key // the first one seals, all open
}

// Seal returns value encrypted for ref. It does not keep value.
func (v *Vault) Seal(ref Ref, value []byte) ([]byte, error) {
	if len(value) > maxValue {
		return nil, fmt.Errorf("seal: the value has %d bytes, over %d", len(value), maxValue)
	}
	v.mu.RLock()
	k := v.keys[0]
	v.mu.RUnlock()
	aead, err := k.aead()
	if err != nil {
		return nil, err
	}
	sealed := make([]byte, headSize+aead.NonceSize(), overhead+len(value))
	sealed[0] = sealFormat
	copy(sealed[1:], k.id[:])
	nonce := sealed[headSize:]
	rand.Read(nonce)
	return aead.Seal(sealed, nonce, value, ref.associated(sealed[:headSize])), nil
}

// Open decrypts what was sealed for ref and calls use with it. The value is
// wiped when use returns, which must not keep it. The error is use's own,
// [ErrDamaged], or one that is [ErrKeyMissing].
func (v *Vault) Open(ref Ref, sealed []byte, use func(value []byte) error) error {
	if len(sealed) < overhead || len(sealed) > overhead+maxValue || sealed[0] != sealFormat {
		return ErrDamaged
	}
	k, err := v.find(keyID(sealed[1:headSize]))
	if err != nil {
		return err
	}
	aead, err := k.aead()
	if err != nil {
		return err
	}
	body := sealed[headSize:]
	nonce, body := body[:aead.NonceSize()], body[aead.NonceSize():]
	buf := make([]byte, 0, len(body))
	defer func() { Wipe(buf[:cap(buf)]) }()
	value, err := aead.Open(buf, nonce, body, ref.associated(sealed[:headSize]))
	if err != nil {
		return ErrDamaged
	}
	return use(value)
}

// Current tells whether a value is sealed with the key that seals now.
func (v *Vault) Current(sealed []byte) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return len(sealed) >= headSize && keyID(sealed[1:headSize]) == v.keys[0].id
}

// Missing returns an error that is [ErrKeyMissing], and says where the key should
// be, if a value is sealed with a key that is not there.
func (v *Vault) Missing(sealed []byte) error {
	if len(sealed) < headSize {
		return nil // it is damaged, which opening it tells
	}
	_, err := v.find(keyID(sealed[1:headSize]))
	return err
}

func (v *Vault) find(id keyID) (key, error) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, k := range v.keys {
		if k.id == id {
			return k, nil
		}
	}
	place := v.file
	if place == "" {
		place = EnvKey
	}
	return key{}, fmt.Errorf("%w: key %x is not in %s; put it back from a backup, or rotate the secret with a new value", ErrKeyMissing, id, place)
}

// Reseal seals again what ref's value is sealed in, with the key that seals
// now.
func (v *Vault) Reseal(ref Ref, sealed []byte) ([]byte, error) {
	var again []byte
	err := v.Open(ref, sealed, func(value []byte) (err error) {
		again, err = v.Seal(ref, value)
		return err
	})
	return again, err
}

// Rotate makes a new key and has every value sealed with it. It calls all with
// [Vault.Reseal] for each sealed value there is, and all replaces what it has
// by the result, durably, before it returns. Then the older keys are thrown
// away. If all fails, they are kept and another Rotate finishes the work; it
// may therefore find values that are [Vault.Current] already.
//
// Keys that come from the environment are not made here: put a new one in
// front of the old, start the server again, and Rotate seals with it; then the
// old one can go.
func (v *Vault) Rotate(ctx context.Context, all func(ctx context.Context, reseal func(Ref, []byte) ([]byte, error)) error) error {
	v.rotating.Lock()
	defer v.rotating.Unlock()
	if v.file == "" {
		return all(ctx, v.Reseal)
	}
	v.mu.RLock()
	keys := v.keys
	v.mu.RUnlock()
	if len(keys) >= maxKeys {
		return fmt.Errorf("%s holds %d keys of rotations that did not end: have all secrets sealed again before making another", v.file, len(keys))
	}
	keys = append([]key{newKey()}, keys...)
	if err := v.replace(keys); err != nil {
		return err
	}
	if err := all(ctx, v.Reseal); err != nil {
		return fmt.Errorf("seal secrets with the new key: %w", err)
	}
	return v.replace(keys[:1:1])
}

// replace writes the keys to the file and uses them from then on.
func (v *Vault) replace(keys []key) error {
	if err := replaceKeyFile(v.file, keys); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.keys = keys
	return nil
}

func (k key) aead() (cipher.AEAD, error) {
	aead, err := chacha20poly1305.NewX(k.bytes[:])
	if err != nil {
		return nil, fmt.Errorf("key of secrets: %w", err)
	}
	return aead, nil
}

// Wipe overwrites a buffer.
func Wipe(b []byte) {
	clear(b)
	// Kept alive to here, so that no compiler takes the writes for dead.
	runtime.KeepAlive(&b)
}
