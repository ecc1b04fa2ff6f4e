// Package vault encrypts the values of secrets at rest. A value is in the clear only while
// a function uses it, in a buffer that is wiped afterwards. The package also has presets
// for well-known services and the formats of their placeholders.
package vault

import (
	"cmp"
	"context"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/cove-sh/cove/internal/durable"
)

// A sealed value is
//
//	format (1) | key id (8) | nonce (24) | ciphertext and tag
//
// by XChaCha20-Poly1305, whose nonces are long enough to be random. The header (format
// and key id) and the secret's id and version are authenticated with the ciphertext, so
// a value cannot be substituted for another secret's, nor an old value for a new one.
const (
	sealFormat = 1
	headSize   = 1 + keyIDSize
	overhead   = headSize + chacha20poly1305.NonceSizeX + chacha20poly1305.Overhead
	// maxValue bounds a value, in bytes; the bound in package sandbox is lower.
	maxValue = 1 << 20
)

// ErrDamaged is the error for a sealed value that was not sealed for this secret and
// version: it was changed, truncated, or taken from another secret.
var ErrDamaged = errors.New("the sealed value is damaged or belongs to another secret: rotate the secret with a new value")

// ErrKeyMissing is the error for a value that was sealed with an unknown key.
var ErrKeyMissing = errors.New("the key that sealed this value is missing")

// Ref identifies the secret and version that a value belongs to.
type Ref struct {
	// Secret is the secret's id.
	Secret string
	// Version is the secret's version.
	Version int
}

// associated returns the data that is authenticated with the ciphertext.
func (r Ref) associated(head []byte) []byte {
	ad := append([]byte("cove secret value\x00"), head...)
	ad = binary.BigEndian.AppendUint32(ad, uint32(len(r.Secret)))
	ad = append(ad, r.Secret...)
	return binary.BigEndian.AppendUint64(ad, uint64(r.Version))
}

// Vault seals and opens values. It is safe for concurrent use.
type Vault struct {
	// file holds the keys; "" if they come from the environment.
	file string

	// rotating is held during a rotation.
	rotating sync.Mutex

	mu   sync.RWMutex
	keys []key // the first one seals, all open
}

// Seal returns value encrypted for ref. It does not retain value.
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

// Open decrypts a value that was sealed for ref and calls use with it. use must not retain
// the value, which is wiped when use returns. The error is that of use, is [ErrDamaged], or
// wraps [ErrKeyMissing].
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

// Current reports whether a value is sealed with the key that seals new values.
func (v *Vault) Current(sealed []byte) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return len(sealed) >= headSize && keyID(sealed[1:headSize]) == v.keys[0].id
}

// Missing returns an error that wraps [ErrKeyMissing] and says where the key belongs, if a
// value is sealed with an unknown key; otherwise nil.
func (v *Vault) Missing(sealed []byte) error {
	if len(sealed) < headSize {
		return nil // it is damaged: Open returns that error
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
	return key{}, fmt.Errorf("%w: key %x is not in %s; restore it from a backup, or rotate the secret with a new value", ErrKeyMissing, id, cmp.Or(v.file, EnvKey))
}

// Reseal opens a value that was sealed for ref and seals it with the current key.
func (v *Vault) Reseal(ref Ref, sealed []byte) ([]byte, error) {
	var again []byte
	err := v.Open(ref, sealed, func(value []byte) (err error) {
		again, err = v.Seal(ref, value)
		return err
	})
	return again, err
}

// Rotate generates a new key and has every value sealed with it. It calls all with
// [Vault.Reseal]; before all returns, it must durably replace every sealed value by
// the result of reseal. Then the older keys are deleted. If all fails, they are kept
// and another Rotate finishes the work, which may therefore find values that are
// [Vault.Current] already.
//
// Rotate does not generate a key if the keys come from the environment: the operator
// puts a new key in front of the old one and restarts the server, Rotate seals
// everything with it, and the old key can be removed.
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
		return fmt.Errorf("%s has %d keys of rotations that did not finish: seal all secrets again before creating another key", v.file, len(keys))
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

// replace writes keys to the file and uses them from then on.
func (v *Vault) replace(keys []key) error {
	if err := writeKeyFile(v.file, keys, durable.WriteFile); err != nil {
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
	// KeepAlive prevents the compiler from removing the writes as dead stores.
	runtime.KeepAlive(&b)
}
