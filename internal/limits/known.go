package limits

import (
	"crypto/sha256"
	"sync"
)

// MaxKnown bounds what a [Known] remembers.
const MaxKnown = 4096

// Known is what has opened something lately, by its hash, so that somebody
// else's vain tries from the same address do not keep its holder out. The zero
// value knows nothing. It is safe for concurrent use.
type Known struct {
	mu  sync.Mutex
	all map[[sha256.Size]byte]bool // guarded by mu
}

// Has reports whether something has opened lately.
func (k *Known) Has(what [sha256.Size]byte) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.all[what]
}

// Forget takes note that something opens no more.
func (k *Known) Forget(what [sha256.Size]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.all, what)
}

// Add takes note that something has opened. Of more than [MaxKnown], any is
// forgotten.
func (k *Known) Add(what [sha256.Size]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.all == nil {
		k.all = make(map[[sha256.Size]byte]bool)
	}
	for old := range k.all {
		if len(k.all) < MaxKnown || k.all[what] {
			break
		}
		delete(k.all, old)
	}
	k.all[what] = true
}
