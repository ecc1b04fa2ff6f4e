// Package intercept puts the values of secrets into the requests of a sandbox that has
// only placeholders. It terminates the sandbox's TLS with certificates of the
// installation's own authority, reads the HTTP inside, and opens a TLS connection, with
// full verification of certificates, to the host that the sandbox addressed. It runs in
// the sandbox's cell, as the [egress.Interceptor] of its gateway.
//
// # Where a value goes
//
// A value is sent only to a host on the secret's list, only over TLS, and only in place
// of the placeholder, where a client put it:
//
//   - in any header, since clients differ in where they put a token, except headers that
//     servers show, log or pass on, such as User-Agent and Referer, unless the secret
//     names one;
//   - in basic authentication, as the password of the secret's user;
//   - in the query parameter that the secret names, if its Auth is of that type;
//   - in bodies of up to [sandbox.MaxSecretBody] bytes, if its Auth asks for it.
//
// Paths, and the messages of WebSockets, are never changed. A placeholder anywhere else
// is sent unchanged, or the request is refused, as the policy says; it is recorded in
// either case. Placeholders are searched for in the headers, path and query of every
// request, and in bodies only where they would be replaced.
//
// # Responses
//
// A host may echo a value. In responses of a secret's hosts the value is replaced by the
// placeholder: in headers and trailers, and in bodies of any type, byte for byte, so that
// lengths do not change. Such hosts are asked for uncompressed bodies. Values are not
// detected if the host sends them back in another form (compressed nevertheless, hashed,
// in another encoding, split over several responses) or if they have fewer than 8 bytes.
// A secret should be for hosts that do not echo.
//
// A host may send whatever the sandbox asks it to. Therefore no mask is made from text
// that the sandbox chose; and how much of a response is held back, until when, and how it
// is searched, depends on the structure of the response and never on a value. See masker.
//
// # Other rules for TLS
//
// A request whose host is not the connection's name is refused, and so is CONNECT.
// Requests are parsed and rewritten, so ambiguities are not passed on. TLS with another
// protocol inside is relayed unchanged over a new TLS connection. Clients that offer only
// application protocols other than HTTP are connected to the host without terminating
// TLS, or refused if there is a secret for the host. Client certificates cannot be passed
// on.
package intercept
