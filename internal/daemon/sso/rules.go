package sso

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/sandbox"
)

// Rule gives a team and scopes to people with a certain claim.
type Rule struct {
	// Claim is the name of a claim. Value is what the claim must be or, if the claim is a
	// list, contain. The claim email counts only if the provider has verified the address;
	// it is compared ignoring case, and Value may be *@example.com for all addresses of a
	// domain.
	Claim, Value string
	Team         string
	Scopes       []sandbox.Scope
}

const (
	emailClaim         = "email"
	emailVerifiedClaim = "email_verified"
	// anyAt is the prefix of an email value that stands for all addresses of a domain.
	anyAt = "*@"
)

// claimSet holds the provider's claims about a person.
type claimSet map[string]any

// fulfils reports whether a person fulfils a rule.
func (s claimSet) fulfils(r *Rule) bool {
	if r.Claim != emailClaim {
		return slices.Contains(s.values(r.Claim), r.Value)
	}
	email := strings.ToLower(s.email())
	if domain, ok := strings.CutPrefix(r.Value, anyAt); ok {
		_, of, found := strings.Cut(email, "@")
		return found && of == strings.ToLower(domain)
	}
	return email != "" && email == strings.ToLower(r.Value)
}

// values returns the values of a claim as texts.
func (s claimSet) values(claim string) []string {
	switch v := s[claim].(type) {
	case string:
		return []string{v}
	case bool:
		return []string{fmt.Sprint(v)}
	case []any:
		var all []string
		for _, one := range v {
			if text, ok := one.(string); ok {
				all = append(all, text)
			}
		}
		return all
	}
	return nil
}

const (
	maxEmail   = 254
	maxSubject = 255
)

// email returns the address that the provider has verified, or "". Some providers send
// email_verified as text.
func (s claimSet) email() string {
	address, _ := s[emailClaim].(string)
	verified := s[emailVerifiedClaim] == true || s[emailVerifiedClaim] == "true"
	if !verified || len(address) > maxEmail || strings.Count(address, "@") != 1 || !plain(address) || strings.ContainsAny(address, `:"<>`) {
		return ""
	}
	return address
}

// plain reports whether a name consists of visible ASCII, so that it cannot be mistaken for
// another.
func plain(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// person returns a person with the claims by which they fulfil rules.
func (s claimSet) person(issuer, subject string, rules []Rule) *sandbox.Person {
	p := &sandbox.Person{Issuer: issuer, Subject: subject, Email: s.email(), Claims: []sandbox.Claim{}}
	for i := range rules {
		r := &rules[i]
		if c := (sandbox.Claim{Name: r.Claim, Value: r.Value}); s.fulfils(r) && !slices.Contains(p.Claims, c) {
			p.Claims = append(p.Claims, c)
		}
	}
	return p
}

// ruleFor returns the first rule that a person fulfils, or nil.
func ruleFor(rules []Rule, p *sandbox.Person) *Rule {
	for i := range rules {
		if slices.Contains(p.Claims, sandbox.Claim{Name: rules[i].Claim, Value: rules[i].Value}) {
			return &rules[i]
		}
	}
	return nil
}

const (
	// maxShown bounds the values of a claim that an error shows, and maxShownBytes the
	// length of each.
	maxShown      = 10
	maxShownBytes = 100
)

// lookedAt describes a person's values of the claims that the rules use. It does not reveal
// the values that would let them in.
func (s claimSet) lookedAt(rules []Rule) string {
	var parts []string
	seen := map[string]bool{}
	for i := range rules {
		if claim := rules[i].Claim; !seen[claim] {
			seen[claim] = true
			parts = append(parts, claim+" "+s.describe(claim))
		}
	}
	return strings.Join(parts, "; ")
}

func (s claimSet) describe(claim string) string {
	if _, there := s[claim]; !there {
		return "(which is missing)"
	}
	if claim == emailClaim && s.email() == "" {
		return "(which is not verified)"
	}
	values := s.values(claim)
	if len(values) == 0 {
		return "(which is empty, or no text)"
	}
	more := ""
	if len(values) > maxShown {
		more = fmt.Sprintf(" and %d more", len(values)-maxShown)
		values = values[:maxShown]
	}
	shown := make([]string, len(values))
	for i, v := range values {
		shown[i] = fmt.Sprintf("%q", clip.Text(strings.ToValidUTF8(v, "�"), maxShownBytes))
	}
	return "(which is " + strings.Join(shown, ", ") + more + ")"
}
