package server

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cove-sh/cove/internal/durable"
)

// linkKeyFile holds the key that signs links to previews. Without it, all links
// signed so far are worth nothing.
const linkKeyFile = "preview-links.key"

const linkKeySize = 32

// linkKey reads the key, and makes one if there is none.
func linkKey(files durable.Files) ([]byte, error) {
	key, err := files.Read(linkKeyFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return newLinkKey(files)
	case err != nil:
		return nil, fmt.Errorf("read the key of preview links: %w", err)
	case len(key) != linkKeySize:
		return nil, fmt.Errorf("the key of preview links in %s has %d bytes instead of %d; remove the file to create a new key, which invalidates all links", linkKeyFile, len(key), linkKeySize)
	}
	return key, nil
}

// newLinkKey writes a key, for its owner only, all of it or nothing.
func newLinkKey(files durable.Files) ([]byte, error) {
	key := make([]byte, linkKeySize)
	rand.Read(key)
	if err := files.Write(linkKeyFile, key); err != nil {
		return nil, fmt.Errorf("write the key of preview links: %w", err)
	}
	return key, nil
}
