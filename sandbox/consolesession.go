package sandbox

import "time"

// ConsoleSession is one sign-in of a browser to the console. That of a key has the
// scopes that the key has at the time of each request, and ends with the key; that of
// a person has what the server's rules give them at that time.
type ConsoleSession struct {
	ID string `json:"id"`
	// KeyID is the key that it was begun with, that of [LocalCaller], or what
	// [Person.Actor] returns.
	KeyID string `json:"key_id"`
	Team  string `json:"team"`
	// Person is who signed in by single sign-on, and nil for a session of a key.
	Person *Person `json:"person,omitempty"`
	// Client is what the browser says of itself, shortened. Nothing of it is
	// verified.
	Client     string    `json:"client"`
	CreatedAt  time.Time `json:"created_at"`
	LastUsedAt time.Time `json:"last_used_at"`
	// ExpiresAt is when it ends unless it is used before that.
	ExpiresAt time.Time `json:"expires_at"`
}

// Person is somebody who has signed in by single sign-on, as far as the server keeps
// what the identity provider has said.
type Person struct {
	// Issuer is the provider, and Subject its own name of the person, which never
	// becomes somebody else's.
	Issuer  string `json:"issuer"`
	Subject string `json:"subject"`
	// Email is empty unless the provider says that it has verified it.
	Email string `json:"email,omitempty"`
	// Claims are those of the server's rules that the person fulfils.
	Claims []Claim `json:"claims"`
}

// Claim is something that an identity provider says of a person, as a rule of the
// server names it.
type Claim struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

const (
	actorPrefix   = "sso:"
	subjectPrefix = "subject:" // no e-mail address begins like this
)

// Name returns what the person is called: the e-mail address, or the subject where
// there is none.
func (p *Person) Name() string {
	if p.Email != "" {
		return p.Email
	}
	return p.Subject
}

// Actor returns what stands for the person in the audit record, in place of a key's
// id: "sso:" and the e-mail address, or "sso:subject:" and the subject.
func (p *Person) Actor() string {
	if p.Email != "" {
		return actorPrefix + p.Email
	}
	return actorPrefix + subjectPrefix + p.Subject
}
