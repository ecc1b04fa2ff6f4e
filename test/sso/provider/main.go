// The program provider is a real OpenID provider for tests, with a few people and a page
// on which they sign in. It is a separate module, so that Cove does not have its
// dependencies. It prints the address at which it listens, and ends with its standard
// input.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
)

// password is everybody's.
const password = "a password"

// people are the people who can sign in; their names are also their subjects.
var people = map[string]person{
	"alice": {user("alice", "alice@example.com", true), []string{"platform", "staff"}},
	"bob":   {user("bob", "bob@example.com", true), []string{"staff"}},
	// carol says that she has an address which nobody has verified.
	"carol": {user("carol", "carol@example.com", false), nil},
	"dave":  {user("dave", "dave@elsewhere.test", true), []string{"ops", "<script>alert(1)</script>"}},
	"erin":  {user("erin", "", false), []string{"platform"}},
}

type person struct {
	*storage.User
	groups []string
}

func user(name, email string, verified bool) *storage.User {
	return &storage.User{ID: name, Username: name, Password: password, FirstName: name, LastName: "Test", Email: email, EmailVerified: verified}
}

// directory has the people.
type directory struct{}

func (directory) GetUserByID(id string) *storage.User         { return people[id].User }
func (directory) GetUserByUsername(name string) *storage.User { return people[name].User }
func (directory) ExampleClientID() string                     { return "service" }

// records are the example's, with clients and claims of this program's own.
type records struct{ *storage.Storage }

// client is a client that can return to any port of this machine, at one path.
type client struct {
	op.Client
	lifetime time.Duration
	whole    bool
}

func (c client) RedirectURIGlobs() []string {
	return []string{"http://127.0.0.1:*/console/sso/callback"}
}
func (c client) PostLogoutRedirectURIGlobs() []string { return nil }
func (c client) IDTokenLifetime() time.Duration       { return c.lifetime }
func (c client) IDTokenUserinfoClaimsAssertion() bool { return c.whole }

// GetClientByClientID returns a client by its id: "whole" gets all claims in the ID token,
// and "late" gets expired ID tokens.
func (r records) GetClientByClientID(ctx context.Context, id string) (op.Client, error) {
	c, err := r.Storage.GetClientByClientID(ctx, id)
	if err != nil {
		return nil, err
	}
	lifetime := time.Hour
	if id == "late" {
		lifetime = -time.Hour
	}
	return client{c, lifetime, id == "whole"}, nil
}

func (r records) SetUserinfoFromRequest(ctx context.Context, info *oidc.UserInfo, token op.IDTokenRequest, scopes []string) error {
	err := r.Storage.SetUserinfoFromRequest(ctx, info, token, scopes)
	addGroups(info, scopes)
	return err
}

func (r records) SetUserinfoFromToken(ctx context.Context, info *oidc.UserInfo, token, subject, origin string) error {
	err := r.Storage.SetUserinfoFromToken(ctx, info, token, subject, origin)
	addGroups(info, []string{oidc.ScopeProfile})
	return err
}

// addGroups says whose groups, where a profile is asked for.
func addGroups(info *oidc.UserInfo, scopes []string) {
	for _, s := range scopes {
		if groups := people[info.Subject].groups; s == oidc.ScopeProfile && groups != nil {
			info.AppendClaims("groups", groups)
		}
	}
}

func main() {
	issuer := flag.String("issuer", "", "the address that it says it has")
	secret := flag.String("secret", "", "the secret of all clients")
	flag.Parse()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	storage.RegisterClients(storage.WebClient("cove", *secret), storage.WebClient("whole", *secret), storage.WebClient("late", *secret))
	handler := exampleop.SetupServer(*issuer, records{storage.NewStorage(directory{})}, slog.New(slog.NewTextHandler(os.Stderr, nil)), false)
	fmt.Println(l.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	log.Fatal(http.Serve(l, handler))
}
