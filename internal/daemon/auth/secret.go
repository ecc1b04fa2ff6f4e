package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// redacted replaces the text of a [Secret] in output.
const redacted = "[secret]"

// Secret is a text that must not get into logs, errors or responses by accident: it prints
// redacted, also inside other values, and cannot be encoded. The zero value is empty.
type Secret struct {
	// A pointer: package fmt prints the text of unexported fields it finds
	// in other structs, but only the address of a nested pointer.
	text *string
}

// NewSecret returns a secret with this text.
func NewSecret(text string) Secret { return Secret{&text} }

// Reveal returns the text.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// Format implements [fmt.Formatter] for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// String implements [fmt.Stringer].
func (s Secret) String() string { return redacted }

// LogValue implements [slog.LogValuer].
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns an error, so encoders of JSON, XML and YAML fail too.
func (s Secret) MarshalText() ([]byte, error) {
	return nil, errors.New("a secret must not be encoded; reveal it on purpose")
}

// MarshalJSON returns an error.
func (s Secret) MarshalJSON() ([]byte, error) { return s.MarshalText() }

// DefaultPrefix is the prefix of key secrets, by which scanners find leaked ones.
const DefaultPrefix = "cove_"

// hintBytes is how much of a secret's random part its hint shows: 20 of its
// 130 bits.
const hintBytes = 4

// GenerateKey makes the secret of a new key, and the hint by which people recognize the
// key. An empty prefix is [DefaultPrefix].
func GenerateKey(prefix string) (secret Secret, hint string) {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	random := rand.Text()
	return NewSecret(prefix + random), prefix + random[:hintBytes]
}

// NewKeyID returns a new key's id.
func NewKeyID() string { return "key-" + strings.ToLower(rand.Text()) }

// Hash returns the hash by which a secret is stored. A plain hash is enough: 130 random
// bits cannot be guessed.
func Hash(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}
