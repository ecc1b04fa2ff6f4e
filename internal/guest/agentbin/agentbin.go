// Package agentbin embeds the agent's binary, which every sandbox gets.
//
// The binary must be in the directory bin when the program that embeds it is built. A
// program that was built without it, with plain go build or go install, is itself the
// agent: see [Self].
package agentbin

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

//go:embed all:bin
var files embed.FS

// ErrMissing is the error of a program that was built without the agent.
var ErrMissing = errors.New("built without the agent; run make build")

// selfPath is the running program's file.
const selfPath = "/proc/self/exe"

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

// Self returns the running program and its SHA-256 in hexadecimal. If no agent is
// embedded, the program serves as the agent of its sandboxes; its main function must call
// [github.com/cove-sh/cove/internal/guest/agent.IsRole]. The bytes are the file, mapped
// read-only until the process ends.
func Self() (data []byte, digest string, err error) {
	f, err := os.Open(selfPath)
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, "", err
	}
	data, err = unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, "", fmt.Errorf("map %s: %w", selfPath, err)
	}
	sum := sha256.Sum256(data)
	return data, hex.EncodeToString(sum[:]), nil
}

// Digest returns the SHA-256 of the agent in hexadecimal, or [ErrMissing].
func Digest() (string, error) { return digest() }
