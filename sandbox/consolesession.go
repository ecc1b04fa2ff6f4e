package sandbox

import "time"

// ConsoleSession is one sign-in of a browser to the console. A session with a key has
// the scopes that the key has at the time of each request, and ends with the key. A
// person's session has the scopes that the server's rules give them at that time.
type ConsoleSession struct {
	ID string `json:"id"`
	// KeyID is the key that the session began with, the id of [LocalCaller], or what
	// [Person.Actor] returns.
	KeyID string `json:"key_id"`
	Team  string `json:"team"`
	// Person is who signed in by single sign-on; nil for a session with a key.
	Person *Person `json:"person,omitempty"`
	// Client is what the browser says about itself, shortened and unverified.
	Client     string    `json:"client"`
	CreatedAt  time.Time `json:"created_at"`
	LastUsedAt time.Time `json:"last_used_at"`
	// ExpiresAt is when the session ends unless it is used before that.
	ExpiresAt time.Time `json:"expires_at"`
}

// Person is somebody who has signed in by single sign-on: the part of the identity
// provider's statements that the server keeps.
type Person struct {
	// Issuer is the provider, and Subject its identifier of the person, which it never
	// gives to anybody else.
	Issuer  string `json:"issuer"`
	Subject string `json:"subject"`
	// Email is empty unless the provider says that it has verified the address.
	Email string `json:"email,omitempty"`
	// Claims are those that the server's rules name and that the person has.
	Claims []Claim `json:"claims"`
}

// Claim is a statement of an identity provider about a person that a rule of the server
// names.
type Claim struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

const (
	actorPrefix   = "sso:"
	subjectPrefix = "subject:" // no e-mail address begins like this
)

// Name returns the person's e-mail address, or the subject if there is none.
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
