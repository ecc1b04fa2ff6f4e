// Package agentbin holds the agent's binary, which is put into every sandbox.
//
// The binary is built into the directory bin before the program that embeds
// it; without it everything still compiles, and [Binary] says what to do.
package agentbin

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"io/fs"
	"sync"
)

//go:embed all:bin
var files embed.FS

// ErrMissing says that this program was built without the agent.
var ErrMissing = errors.New("built without the agent; run make build")

var load = sync.OnceValues(func() ([]byte, error) { return from(files) })

func from(fsys fs.FS) ([]byte, error) {
	data, err := fs.ReadFile(fsys, "bin/agent")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrMissing
	}
	return data, err
}

// Binary returns the agent, a static program for this machine, or
// [ErrMissing]. The caller must not change it.
func Binary() ([]byte, error) { return load() }

var digest = sync.OnceValues(func() (string, error) {
	data, err := Binary()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
})

// Digest returns the SHA-256 of the agent in hexadecimal, or [ErrMissing].
func Digest() (string, error) { return digest() }
