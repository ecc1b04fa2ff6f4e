package sandbox

import "time"

// ConsoleSession is one sign-in of a browser to the console. It has the scopes
// that its key has at the time of each request, and ends with the key.
type ConsoleSession struct {
	ID string `json:"id"`
	// KeyID is the key that it was begun with, or that of [LocalCaller].
	KeyID string `json:"key_id"`
	Team  string `json:"team"`
	// Client is what the browser says of itself, shortened. Nothing of it is
	// verified.
	Client     string    `json:"client"`
	CreatedAt  time.Time `json:"created_at"`
	LastUsedAt time.Time `json:"last_used_at"`
	// ExpiresAt is when it ends unless it is used before that.
	ExpiresAt time.Time `json:"expires_at"`
}
