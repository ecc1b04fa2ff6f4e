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

// redacted is what is seen of a [Secret].
const redacted = "[secret]"

// Secret is a text that must not get into logs, errors or answers by accident:
// it prints redacted, also inside other values, and refuses to be encoded. The
// zero value is empty.
type Secret struct {
	// A pointer: package fmt prints the text of unexported fields it finds
	// in other structs, but only the address of a nested pointer.
	text *string
}

// NewSecret keeps text.
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

// MarshalText refuses, and with it encoders of JSON, XML and YAML do.
func (s Secret) MarshalText() ([]byte, error) {
	return nil, errors.New("a secret must not be encoded; reveal it on purpose")
}

// MarshalJSON refuses.
func (s Secret) MarshalJSON() ([]byte, error) { return s.MarshalText() }

// DefaultPrefix begins the secrets of keys, so that scanners find leaked ones.
const DefaultPrefix = "cove_"

// hintBytes is how much of a secret's random part its hint shows: 20 of its
// 130 bits.
const hintBytes = 4

// GenerateKey makes the secret of a new key and the hint that stays visible of
// it. An empty prefix is [DefaultPrefix].
func GenerateKey(prefix string) (secret Secret, hint string) {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	random := rand.Text()
	return NewSecret(prefix + random), prefix + random[:hintBytes]
}

// NewKeyID returns a new key's id.
func NewKeyID() string { return "key-" + strings.ToLower(rand.Text()) }

// Hash is what is stored of a secret. A plain hash will do: with 130 random
// bits there is nothing to guess.
func Hash(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}
