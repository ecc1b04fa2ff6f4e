package server

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// linkKeyFile holds the key that signs links to previews. Without it, all links
// signed so far are worth nothing.
const linkKeyFile = "preview-links.key"

const linkKeySize = 32

// linkKey reads the key, and makes one if there is none.
func linkKey(file string) ([]byte, error) {
	key, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return newLinkKey(file)
	case err != nil:
		return nil, fmt.Errorf("read the key of preview links: %w", err)
	case len(key) != linkKeySize:
		return nil, fmt.Errorf("the key of preview links in %s has %d bytes instead of %d; remove the file to have a new one, which ends all links", file, len(key), linkKeySize)
	}
	return key, nil
}

// newLinkKey writes a key, for its owner only, all of it or nothing.
func newLinkKey(file string) ([]byte, error) {
	key := make([]byte, linkKeySize)
	rand.Read(key)
	f, err := os.CreateTemp(filepath.Dir(file), ".preview-links-") // 0600
	if err == nil {
		_, err = f.Write(key)
		err = errors.Join(err, f.Sync(), f.Close())
		if err == nil {
			err = os.Rename(f.Name(), file)
		}
		if err == nil {
			err = syncDir(filepath.Dir(file))
		}
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("write the key of preview links: %w", err)
	}
	return key, nil
}

// syncDir writes a directory's names to the disk.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
