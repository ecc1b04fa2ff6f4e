package limits

import (
	"crypto/sha256"
	"sync"
)

// MaxAccepted is how many credentials an [Accepted] remembers.
const MaxAccepted = 4096

// Accepted remembers the hashes of recently accepted credentials, so that failed logins
// by others from the same address do not lock their holders out. The zero value is empty.
// It is safe for concurrent use.
type Accepted struct {
	mu  sync.Mutex
	all map[[sha256.Size]byte]bool // guarded by mu
}

// Has reports whether the credential was accepted recently.
func (k *Accepted) Has(hash [sha256.Size]byte) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.all[hash]
}

// Forget removes a credential that is no longer valid.
func (k *Accepted) Forget(hash [sha256.Size]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.all, hash)
}

// Add remembers an accepted credential. Beyond [MaxAccepted], an arbitrary one is
// forgotten.
func (k *Accepted) Add(hash [sha256.Size]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.all == nil {
		k.all = make(map[[sha256.Size]byte]bool)
	}
	for old := range k.all {
		if len(k.all) < MaxAccepted || k.all[hash] {
			break
		}
		delete(k.all, old)
	}
	k.all[hash] = true
}
